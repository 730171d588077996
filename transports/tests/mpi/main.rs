//! The MPI transport in real jobs: this program starts itself under `mpirun`, as often as there are ranks.
//!
//! `GRADWIRE_MPIRUN` names another launcher. Without one everything here is skipped, loudly.

mod launch;
mod rank;

use std::time::Duration;

use gradwire_transports::conformance;
use gradwire_transports::mpi::{DROPPED_EXIT_CODE, PANIC_EXIT_CODE, WATCHDOG_EXIT_CODE};

use launch::{Job, Signal};

/// Not a test of its own: what a rank does when the tests below start it.
#[test]
fn rank() {
    rank::run_if_started();
}

#[test]
fn the_contract_holds_with_two_three_and_four_ranks() {
    for world in [2, 3, 4] {
        Job::new("conformance", world).must_succeed();
    }
}

#[test]
fn the_contract_holds_with_tight_limits_and_payloads_in_pieces() {
    Job::new("pieces", 3).must_succeed();
}

#[test]
fn ranks_leave_as_the_contract_says() {
    for number in 0..conformance::departures().len() {
        Job::new(&format!("departure:{number}"), 3).must_succeed();
    }
}

#[test]
fn the_same_gradients_give_the_same_means_as_threads_of_one_process() {
    for world in [2, 4] {
        Job::new("exchange", world).must_succeed();
    }
}

#[test]
fn native_sums_work_with_a_preferred_ring_and_the_report_knows_it() {
    Job::new("native", 4).must_succeed();
}

#[test]
fn nobody_is_left_in_a_native_sum_that_another_rank_does_not_enter() {
    Job::new("outside", 4).must_succeed();
}

#[test]
fn messages_travel_while_nobody_calls() {
    Job::new("background", 2).must_succeed();
}

#[test]
fn who_sends_more_than_is_taken_is_held_back() {
    Job::new("full", 2).must_succeed();
}

/// Needs 8 GiB of memory.
#[test]
#[ignore = "needs 8 GiB of memory; `./ci.sh mpich` runs it"]
fn a_payload_above_two_gib_arrives_whole() {
    Job::new("big", 2).within(Duration::from_secs(300)).must_succeed();
}

#[test]
fn a_panic_on_one_rank_ends_the_job() {
    Job::new("panic", 4).must_fail_with(PANIC_EXIT_CODE);
}

#[test]
fn an_error_on_one_rank_ends_the_job_with_its_code() {
    Job::new("error", 4).must_fail_with(rank::ERROR_CODE);
}

#[test]
fn a_rank_that_returns_early_ends_the_job() {
    Job::new("dropped", 4).must_fail_with(DROPPED_EXIT_CODE);
}

#[test]
fn a_rank_that_exits_ends_the_job() {
    Job::new("exit", 4).must_fail();
    Job::new("exit-0", 4).must_fail();
}

#[test]
fn a_rank_that_is_killed_ends_the_job() {
    Job::new("loop", 4).with_signal(Signal::KILL, 2).must_fail();
}

#[test]
fn an_interrupted_rank_ends_the_job() {
    Job::new("loop", 4).with_signal(Signal::INTERRUPT, 2).must_fail();
}

#[test]
fn an_interrupted_launcher_ends_the_job() {
    Job::new("loop", 4).with_signal_to_launcher(Signal::INTERRUPT).must_fail();
}

#[test]
fn a_rank_that_is_stopped_trips_the_watchdog() {
    Job::new("loop", 4).with_signal(Signal::STOP, 2).must_fail_with(WATCHDOG_EXIT_CODE);
}

#[test]
fn a_rank_that_is_stopped_in_a_native_sum_trips_the_watchdog() {
    Job::new("native-loop", 4).with_signal(Signal::STOP, 2).must_fail_with(WATCHDOG_EXIT_CODE);
}

#[test]
fn a_rank_that_hangs_trips_the_watchdog_of_the_others() {
    Job::new("hang", 4).must_fail_with(WATCHDOG_EXIT_CODE);
}

#[test]
fn a_rank_that_is_stopped_while_all_leave_trips_the_watchdog() {
    Job::new("stopped-at-the-end", 3).must_fail_with(WATCHDOG_EXIT_CODE);
}
