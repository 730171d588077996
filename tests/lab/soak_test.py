"""A short soak; soak.py says what it holds, and makes long ones."""

import unittest

import soak


class SoakTest(unittest.TestCase):
    def test_a_run_that_is_disturbed_all_the_time_ends_as_if_it_were_not(self):
        found = soak.soak(steps=1500, seed=1)
        for name, (what, is_right) in found.items():
            with self.subTest(name):
                self.assertTrue(is_right, f"{name}: {what}")
