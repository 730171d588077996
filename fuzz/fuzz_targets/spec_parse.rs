//! Any text is a spelling or an error that can be shown on one line; a spelling that is printed reads back as
//! the same. So it is with rules.
#![no_main]

use gradwire::Spec;
use gradwire::rules::Rules;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match Spec::parse(text) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(spec) => {
            let printed = spec.to_string();
            assert_eq!(Spec::parse(&printed), Ok(spec), "{printed}");
            assert!(!printed.contains(char::is_whitespace));
        }
    }
    match Rules::parse(text) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(rules) => {
            let printed = rules.to_string();
            assert_eq!(Rules::parse(&printed).as_ref(), Ok(&rules), "{printed}");
            assert!(!printed.contains(char::is_whitespace));
        }
    }
});
