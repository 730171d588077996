//! The rules on small crates, each once broken and once kept.

use gradwire_layers::{Crate, Findings, Order, Sources, check, floors};

/// A crate of these files, below `a/src`.
fn parsed(files: &[(&str, &str)]) -> Crate {
    let sources: Sources =
        files.iter().map(|(name, text)| (format!("a/src/{name}"), (*text).to_owned())).collect();
    Crate::parse("a/src", &sources).unwrap()
}

/// What is found in a crate whose layers are the lines of `layers`, the lowest first.
fn findings(layers: &str, files: &[(&str, &str)]) -> Findings {
    let orders = Order::all(&format!("```layers a/src\n{layers}\n```\n")).unwrap();
    let krate = parsed(files);
    check(&krate, &krate.arrows(), &orders[0], "ORDER")
}

fn violations(layers: &str, files: &[(&str, &str)]) -> Vec<String> {
    findings(layers, files).violations
}

/// That `low.rs` must not say `text`, for one arrow to what `high.rs` defines, at `line` and written as
/// `path`; and that `high.rs` may say the same of `low.rs`, as everything else is the same.
#[track_caller]
fn goes_up(text: &str, line: usize, path: &str) {
    let lib = "mod high;\nmod low;\npub use high::High;\npub(crate) use high::make;\n";
    let defined =
        "pub struct High; pub fn make() {} pub const LIMIT: u8 = 1; pub mod inner { pub struct Deep; }\n";
    let files = [("lib.rs", lib), ("high.rs", defined), ("low.rs", text)];
    let expected = format!(
        "a/src/low.rs:{line}: `{path}` goes up: from low (layer 1) to high (layer 2), defined in a/src/high.rs"
    );
    assert_eq!(violations("low\nhigh", &files), [expected]);
    let turned = findings("high\nlow", &files);
    assert_eq!(turned.violations, [""; 0]);
    assert_eq!(turned.arrows, 2);
}

#[track_caller]
fn goes_nowhere(text: &str) {
    let lib = "mod high;\nmod low;\npub use high::High;\n";
    let files = [("lib.rs", lib), ("high.rs", "pub struct High; pub fn high() {}\n"), ("low.rs", text)];
    let found = findings("low\nhigh", &files);
    assert_eq!(found.violations, [""; 0]);
    assert_eq!(found.arrows, 1);
}

#[test]
fn imports_are_followed() {
    goes_up("use crate::high::High;", 1, "crate::high::High");
    goes_up("use super::high::High as Other;", 1, "super::high::High");
    goes_up("use crate::{\n  high::{\n    High\n  }\n};", 3, "crate::high::High");
    goes_up("use crate::high::inner::Deep;", 1, "crate::high::inner::Deep");
    goes_up("fn f() {\n  use crate::high::High;\n}", 2, "crate::high::High");
    goes_up("mod part {\n  use super::super::high::High;\n}", 2, "super::super::high::High");
}

#[test]
fn paths_in_code_are_followed() {
    goes_up("fn f() { crate::high::make(); }", 1, "crate::high::make");
    goes_up("\nstruct S(Option<crate::high::High>);", 2, "crate::high::High");
    goes_up(
        "fn f(x: u8) -> bool { matches!(x, 0) && match x { crate::high::LIMIT => true, _ => false } }",
        1,
        "crate::high::LIMIT",
    );
    goes_up("impl Clone for super::high::High {}", 1, "super::high::High");
    goes_up("type A = <crate::high::High as Iterator>::Item;", 1, "crate::high::High");
    goes_up("type A = <crate::high::High>::Item;", 1, "crate::high::High");
}

#[test]
fn an_imported_module_counts_where_it_is_used() {
    goes_up("use crate::high;\nfn f() { high::make() }", 2, "high::make");
    goes_up("use crate::high as other;\nfn f() { other::make() }", 2, "other::make");
    goes_up("use crate::high::{self};\nfn f() { vec![high::make()]; }", 2, "high::make");
    goes_up("pub use crate::high;", 1, "crate::high");
    goes_up("fn f() {\n  use crate::high;\n  high::make()\n}", 3, "high::make");
    goes_nowhere("use crate::high;");
}

#[test]
fn re_exports_at_the_root_lead_to_the_definition() {
    goes_up("use crate::High;", 1, "crate::High");
    goes_up("use super::High;", 1, "super::High");
    goes_up("fn f() { crate::make() }", 1, "crate::make");
}

#[test]
fn re_exports_of_a_folder_lead_to_the_definition() {
    let files = |user| {
        [
            ("lib.rs", "mod parts; mod user;"),
            ("parts/mod.rs", "mod small; mod large; pub(crate) use self::{small::*, large::Large as Big};"),
            ("parts/small.rs", "pub(crate) struct Small;"),
            ("parts/large.rs", "pub(crate) struct Large;"),
            ("user.rs", user),
        ]
    };
    let layers = "parts/small\nuser\nparts/large\nparts";
    assert_eq!(violations(layers, &files("use crate::parts::Small;")), [""; 0]);
    assert_eq!(
        violations(layers, &files("use crate::parts::Big;")),
        [
            "a/src/user.rs:1: `crate::parts::Big` goes up: from user (layer 2) to parts/large (layer 3), defined in \
             a/src/parts/large.rs"
        ]
    );
}

#[test]
fn a_function_may_have_the_name_of_a_module() {
    let files = |user| {
        [
            ("lib.rs", "mod parts; mod user;"),
            ("parts/mod.rs", "pub mod make; pub fn make() {}"),
            ("parts/make.rs", "pub struct Made;"),
            ("user.rs", user),
        ]
    };
    let layers = "parts/make\nuser\nparts";
    assert_eq!(violations(layers, &files("type A = crate::parts::make::Made;")), [""; 0]);
    assert_eq!(violations(layers, &files("fn f() { crate::parts::make() }")).len(), 1);
}

#[test]
fn globs_are_followed() {
    goes_up("use crate::high::*;", 1, "crate::high::*");
    // The root defines nothing: its names count where they are used.
    goes_up("use crate::*;\nfn f(_: High) {}", 2, "High");
    goes_nowhere("use crate::*;");
    let files = |user| {
        [
            ("lib.rs", "mod high; mod low; mod list;"),
            ("list.rs", "pub use crate::high::*;"),
            ("high.rs", "pub struct High;"),
            ("low.rs", user),
        ]
    };
    assert_eq!(violations("low\nhigh\nlist", &files("struct High;")), [""; 0]);
    assert_eq!(
        violations("low\nhigh\nlist", &files("use crate::list::High;")),
        [
            "a/src/low.rs:1: `crate::list::High` goes up: from low (layer 1) to high (layer 2), defined in a/src/high.rs"
        ]
    );
}

#[test]
fn a_glob_that_passes_names_on_needs_all_of_them() {
    let files = |text| {
        [
            ("lib.rs", "mod high; mod list; mod low;"),
            ("list.rs", "pub use crate::high::High;"),
            ("high.rs", "pub struct High;"),
            ("low.rs", text),
        ]
    };
    assert_eq!(violations("low\nhigh\nlist", &files("use crate::list::*;")), [""; 0]);
    assert_eq!(
        violations("low\nhigh\nlist", &files("pub use crate::list::*;")),
        [
            "a/src/low.rs:1: `crate::list::*` goes up: from low (layer 1) to high (layer 2), defined in a/src/high.rs"
        ]
    );
}

#[test]
fn calls_of_macros_are_searched() {
    goes_up("fn f() { assert_eq!(1, [crate::high::LIMIT][0]); }", 1, "crate::high::LIMIT");
    goes_up("list! {\n  use super::{high::{make as other}};\n}", 2, "super::high::make");
    goes_up("use crate::high;\nfn f() { println!(\"{}\", high::LIMIT); }", 2, "high::LIMIT");
    goes_up("macro_rules! m { () => { $crate::high::make() } }", 1, "crate::high::make");
    goes_nowhere("use crate::high;\nfn f(high: F) { println!(\"{} {}\", high.make(), ::high::make()); }");
    goes_nowhere("use crate::high;\nmacro_rules! m { ($high:ident) => { $high::high() } }");
    goes_nowhere("use crate::*;\nfn f(x: X) { println!(\"{}\", x.High); }");
}

#[test]
fn names_of_macros_lead_to_their_definition() {
    let files =
        |rule, user| [("lib.rs", "#[macro_use] mod high; mod low;"), ("high.rs", rule), ("low.rs", user)];
    let private = "macro_rules! m { () => {} }";
    let passed_on = "macro_rules! m { () => {} } pub(crate) use m;";
    assert_eq!(violations("low\nhigh", &files(private, "m!();")).len(), 1);
    assert_eq!(violations("low\nhigh", &files(private, "crate::m!();")).len(), 1);
    assert_eq!(violations("low\nhigh", &files(passed_on, "use crate::high::m;")).len(), 1);
    assert_eq!(violations("low\nhigh", &files(passed_on, "n!();")), [""; 0]);
}

#[test]
fn what_a_macro_makes_is_in_the_file_that_is_asked_for_it() {
    goes_up("use crate::high::Made;", 1, "crate::high::Made");
}

#[test]
fn code_for_tests_is_left_out() {
    goes_nowhere("#[cfg(test)]\nmod tests { use crate::high::High; }");
    goes_nowhere("#[cfg(all(test, feature = \"std\"))]\nuse crate::high::High;");
    goes_nowhere("impl S { #[cfg(test)] fn f(&self) { crate::high::make() } }");
    goes_nowhere("fn f() { #[cfg(test)] let _ = crate::high::make(); }");
    goes_nowhere("fn f() { #[cfg(test)] { crate::high::make(); } }");
    goes_up("#[cfg(any(test, feature = \"std\"))]\nuse crate::high::High;", 2, "crate::high::High");
    goes_up("#[cfg(fuzzing)]\nuse crate::high::High;", 2, "crate::high::High");
    goes_up("#[cfg(not(test))]\nuse crate::high::High;", 2, "crate::high::High");
}

#[test]
fn files_for_tests_are_left_out() {
    let files = |lib| {
        [
            ("lib.rs", lib),
            ("high.rs", "pub struct High;"),
            ("low.rs", "mod tests;"),
            ("low/tests.rs", "use crate::high::High;"),
        ]
    };
    let with_tests = files("mod high; mod low;");
    assert_eq!(violations("low\nhigh", &with_tests).len(), 1);
    let mut without = with_tests;
    without[2].1 = "#[cfg(test)] mod tests;";
    let found = findings("low\nhigh", &without);
    assert_eq!(found.violations, [""; 0]);
    assert_eq!((found.files, found.arrows), (3, 0));
    let mut inner = with_tests;
    inner[3].1 = "#![cfg(test)]\nuse crate::high::High;";
    assert_eq!(violations("low\nhigh", &inner), [""; 0]);
}

#[test]
fn what_is_only_said_is_no_arrow() {
    goes_nowhere("/// See [`crate::high::High`].\nstruct S; // crate::high::High");
    goes_nowhere("const S: &str = \"crate::high::High\";");
    goes_nowhere("fn f(high: fn()) { high() }");
    goes_nowhere("use std::high::High; use ::high::make;");
    goes_nowhere("use crate::*;\nfn f() { struct High; let _ = High; }");
    goes_nowhere("use crate::*;\nstruct High;\nfn f(_: High) {}");
}

#[test]
fn visibility_counts_for_layers_but_makes_no_circle() {
    let files = |child| {
        [
            ("lib.rs", "mod parts;"),
            ("parts/mod.rs", "mod child; use child::f; struct Own;"),
            ("parts/child.rs", child),
        ]
    };
    let visible = files("pub(in crate::parts) fn f() {}");
    let found = findings("parts", &visible);
    assert_eq!((found.violations.len(), found.arrows, found.largest_circle), (0, 2, 0));
    assert_eq!(
        violations("parts/child\nparts", &visible),
        [
            "a/src/parts/child.rs:1: `crate::parts` goes up: from parts/child (layer 1) to parts (layer 2), defined in \
             a/src/parts/mod.rs"
        ]
    );
    assert_eq!(violations("parts/child\nparts", &files("pub(super) fn f() {}")), [""; 0]);
}

#[test]
fn nothing_may_need_the_root() {
    let files = |low| [("lib.rs", "mod low; pub struct Root;"), ("low.rs", low)];
    assert_eq!(violations("low", &files("")), [""; 0]);
    assert_eq!(
        violations("low", &files("use crate::Root;")),
        [
            "a/src/low.rs:1: `crate::Root` goes up: from low (layer 1) to lib (layer 2), defined in a/src/lib.rs"
        ]
    );
    assert_eq!(violations("low\nlib", &files("")), [""; 0]);
    assert_eq!(violations("lib\nlow", &files("")), ["ORDER:2: `lib` is always the top"]);
}

#[test]
fn a_parent_and_its_children_may_make_a_small_circle() {
    let files = |child| {
        [
            ("lib.rs", "mod parts;"),
            ("parts/mod.rs", "mod child; pub(crate) use child::Child; pub(crate) struct Own;"),
            ("parts/child.rs", child),
        ]
    };
    let found = findings("parts", &files("use super::Own; pub(crate) struct Child;"));
    assert_eq!((found.violations.len(), found.largest_circle), (0, 2));
    assert_eq!(findings("parts", &files("pub(crate) struct Child;")).largest_circle, 0);
    // As rooms of their own they are no longer in one room; the arrow also goes up.
    assert_eq!(violations("parts/child parts", &files("use super::Own; pub(crate) struct Child;")).len(), 1);
}

#[test]
fn the_file_of_a_folder_may_stand_beside_it() {
    let files = [
        ("lib.rs", "mod parts;"),
        ("parts.rs", "mod child; use child::Child; pub(crate) struct Own;"),
        ("parts/child.rs", "use super::Own; pub(crate) struct Child;"),
    ];
    let found = findings("parts", &files);
    assert_eq!((found.violations, found.largest_circle), (Vec::new(), 2));
}

#[test]
fn a_circle_across_folders_is_refused() {
    let files = |b| {
        [("lib.rs", "mod a; mod b;"), ("a/mod.rs", "use crate::b::B; pub(crate) struct A;"), ("b/mod.rs", b)]
    };
    assert_eq!(violations("b a", &files("pub(crate) struct B;")), [""; 0]);
    assert_eq!(
        violations("b a", &files("pub(crate) struct B(crate::a::A);")),
        ["a/src/a/mod.rs:1: a circle of 2 files is not within one folder of one room\n    \
          a/src/a/mod.rs (a)\n    a/src/b/mod.rs (b)\n      \
          a/src/a/mod.rs:1: crate::b::B -> a/src/b/mod.rs\n      \
          a/src/b/mod.rs:1: crate::a::A -> a/src/a/mod.rs"]
    );
}

#[test]
fn a_circle_between_folders_of_one_room_is_refused() {
    let files = |deep| {
        [
            ("lib.rs", "mod parts;"),
            ("parts/mod.rs", "mod inner; use inner::deep::Deep; pub(crate) struct Own;"),
            ("parts/inner/mod.rs", "pub(crate) mod deep;"),
            ("parts/inner/deep.rs", deep),
        ]
    };
    assert_eq!(violations("parts", &files("pub(crate) struct Deep;")), [""; 0]);
    let refused = violations("parts", &files("pub(crate) struct Deep(crate::parts::Own);"));
    assert_eq!(refused.len(), 1);
    assert!(
        refused[0].starts_with("a/src/parts/mod.rs:1: a circle of 2 files is not within one folder"),
        "{refused:?}"
    );
}

#[test]
fn the_folder_of_the_root_is_no_room() {
    let files = [
        ("lib.rs", "mod parts;"),
        ("parts.rs", "#[path = \"child.rs\"] mod child; use child::Child; pub(crate) struct Own;"),
        ("child.rs", "use super::Own; pub(crate) struct Child;"),
    ];
    assert_eq!(violations("parts", &files).len(), 1);
}

#[test]
fn a_circle_of_six_files_is_refused() {
    let names = ["one", "two", "three", "four", "five", "six"];
    // Each needs the next one; the last one needs the first.
    let circle_of = |count: usize| {
        let names = &names[..count];
        let mut files = vec![
            ("lib.rs".to_owned(), "mod parts;".to_owned()),
            ("parts/mod.rs".to_owned(), format!("mod {};", names.join("; mod "))),
        ];
        for (index, name) in names.iter().enumerate() {
            let next = names[(index + 1) % count];
            files.push((format!("parts/{name}.rs"), format!("pub(super) fn f() {{ super::{next}::f() }}")));
        }
        let files: Vec<_> = files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        findings("parts", &files)
    };
    assert_eq!((circle_of(5).violations.len(), circle_of(5).largest_circle), (0, 5));
    let six = circle_of(6);
    assert_eq!((six.violations.len(), six.largest_circle), (1, 6));
    assert!(
        six.violations[0].contains("a circle of 6 files has more than 5 files\n"),
        "{}",
        six.violations[0]
    );
}

#[test]
fn every_module_has_a_room_and_every_room_a_module() {
    let files = [("lib.rs", "mod a; mod b; mod c { }"), ("a.rs", ""), ("b.rs", "")];
    let found = findings("a b", &files);
    assert_eq!((found.violations.len(), found.rooms, found.files), (0, 2, 3));
    assert_eq!(violations("a", &files), ["a/src/b.rs:1: no layer is stated for the module `b`"]);
    assert_eq!(violations("a b\nd", &files), ["ORDER:3: a/src has no module `d`"]);
    assert_eq!(violations("a b a/x", &files), ["ORDER:2: a/src has no module `a/x`"]);
    assert_eq!(violations("a b c", &files), ["ORDER:2: the module `c` has no file of its own"]);
}

#[test]
fn files_and_modules_match() {
    let with = |lib| violations("a", &[("lib.rs", lib), ("a.rs", ""), ("main.rs", ""), ("bin/tool.rs", "")]);
    assert_eq!(with("mod a;"), [""; 0]);
    assert_eq!(with("mod a;\nmod b;"), ["a/src/lib.rs:2: the module `b` has no file"]);
    assert_eq!(with("mod a { }")[0], "a/src/a.rs:1: no module of the crate is this file");
}

#[test]
fn stated_paths_of_files_are_honoured() {
    let files = |low| {
        [
            (
                "lib.rs",
                "#[path = \"else/where.rs\"] mod low; #[cfg_attr(unix, path = \"other.rs\")] mod high;",
            ),
            ("else/where.rs", low),
            ("else/part.rs", "pub(super) struct Part;"),
            ("other.rs", "pub(crate) struct High;"),
        ]
    };
    assert_eq!(violations("low\nhigh", &files("mod part; use part::Part;")), [""; 0]);
    assert_eq!(
        violations("low\nhigh", &files("mod part; use crate::high::High;")),
        [
            "a/src/else/where.rs:1: `crate::high::High` goes up: from low (layer 1) to high (layer 2), defined in \
             a/src/other.rs"
        ]
    );
}

#[test]
fn rooms_of_one_layer_may_import_each_other() {
    let files = [
        ("lib.rs", "mod a; mod b; mod c;"),
        ("a.rs", "use crate::b::B;"),
        ("b.rs", "pub struct B;"),
        ("c.rs", "use crate::b::B;"),
    ];
    assert_eq!(violations("a b c", &files), [""; 0]);
    assert_eq!(violations("a\nb c", &files).len(), 1);
}

#[test]
fn floors_are_as_low_as_the_arrows_allow() {
    let krate = parsed(&[
        ("lib.rs", "mod a; mod b; mod c; mod d;"),
        ("a.rs", "pub struct A;"),
        ("b.rs", "pub struct B(crate::a::A, crate::c::C);"),
        ("c.rs", "pub struct C(Option<Box<crate::b::B>>);"),
        ("d.rs", "pub struct D(crate::b::B);"),
    ]);
    let floors = floors(&krate, &krate.arrows(), None);
    let floors: Vec<String> = floors
        .iter()
        .map(|floor| floor.iter().map(|rooms| rooms.join("+")).collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(floors, ["a", "b+c", "d"]);
}

#[test]
fn a_file_that_is_not_rust_is_named() {
    let sources = Sources::from([("a/src/lib.rs".to_owned(), "\nfn (".to_owned())]);
    let error = Crate::parse("a/src", &sources).err().unwrap();
    assert!(error.starts_with("a/src/lib.rs:2: "), "{error}");
    assert_eq!(
        Crate::parse("a/src", &Sources::new()).err().unwrap(),
        "a/src: neither lib.rs nor main.rs is there"
    );
}
