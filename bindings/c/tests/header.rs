//! The header in the repository is the one that the code makes. `GRADWIRE_WRITE_HEADER=1 cargo test`
//! writes it.

use std::path::Path;

/// What no declaration of Rust can say. `api.c` compares the first two with the functions of these names.
const MACROS: &str = "
/**
 * The version of this header as one number: 10203 is 1.2.3.
 */
#define GW_VERSION_NUMBER (GW_VERSION_MAJOR * 10000 + GW_VERSION_MINOR * 100 + GW_VERSION_PATCH)

/**
 * gw_frame_bound as a constant, for arrays.
 */
#define GW_FRAME_BOUND(elements) ((size_t)(elements) * 8 + 2048)

/**
 * A share of the coordinates as gw_topk_init takes it, computed by the compiler.
 */
#define GW_DENSITY(share) ((uint32_t)((share) * 1e9 + 0.5))
";

/// The sections of the manual, in order, with what the names of their declarations begin with. Structures
/// come before all of them, as objects, and `_size` and `_init` have a section of their own.
const SECTIONS: &[(&str, &[&str])] = &[
    (RESULTS, &["GW_VERSION", "gw_version", "gw_format", "GW_OK", "GW_ENCODE_", "GW_DECODE_", "GW_ERROR_"]),
    (RESULTS, &["GW_EXCHANGE_", "gw_result"]),
    (OBJECTS, &[]),
    ("Simple: codecs", &["gw_codec", "GW_CAN_"]),
    ("Simple: layouts", &["gw_layout"]),
    ("Simple: memories", &["gw_memory"]),
    (
        "Simple: encoding",
        &[
            "gw_encode",
            "GW_ALL_RANKS",
            "GW_RANKS",
            "GW_VOID_BYTES",
            "gw_frame_bound",
            "GW_FRAME_",
            "gw_packet",
        ],
    ),
    ("Simple: reading", &["gw_add", "gw_frame", "GW_HEADER_BYTES", "gw_value_visitor", "gw_void_read"]),
    (OWN_MEMORY, &["GW_ALIGNMENT"]),
    (
        "Exchange",
        &[
            "gw_exchange",
            "GW_ROUTE_",
            "GW_WORKED",
            "GW_WAITING",
            "GW_DONE",
            "GW_TAG_BYTES",
            "GW_NEVER",
            "GW_PART_",
            "GW_MOST_SAID",
        ],
    ),
    (
        "Rounds of linear codecs",
        &[
            "gw_rounds",
            "GW_SUM_",
            "GW_MAX_F32",
            "GW_MIN_I32",
            "GW_AND_U32",
            "GW_GATHER_U8",
            "GW_BROADCAST_U8",
        ],
    ),
    (NO_HEAP, &["GW_DENSITY", "gw_topk", "gw_qsgd", "gw_none"]),
    ("Limits", &["gw_limits"]),
    ("Looking into a frame", &["gw_outline"]),
    ("Random draws", &["gw_draw"]),
];
const RESULTS: &str = "Versions and results";
const OBJECTS: &str = "Objects";
const OWN_MEMORY: &str = "Memory and buffers of your own";
const NO_HEAP: &str = "Without a heap";

/// What a section begins with.
const OPENINGS: &[(&str, &str)] = &[(
    NO_HEAP,
    "
/*
 * The library that `install.sh PREFIX small TARGET` builds allocates nothing and needs no operating
 * system. Its functions are these; linking finds what is not there:
 *
 *   gw_codec_size, gw_draw, gw_encode, gw_encode_void, gw_encoder_error_index,
 *   gw_encoder_error_text, gw_encoder_init, gw_encoder_set_divide_by_senders,
 *   gw_encoder_set_source, gw_encoder_size, gw_format_version_max, gw_format_version_min,
 *   gw_frame_add, gw_frame_bound, gw_frame_each, gw_frame_init, gw_frame_length, gw_frame_size,
 *   gw_frame_step, gw_layout_elements, gw_layout_fingerprint, gw_layout_init,
 *   gw_layout_init_opaque, gw_layout_size, gw_limits_init, gw_limits_set_max_body_bytes,
 *   gw_limits_set_max_elements, gw_limits_set_max_entries, gw_limits_set_max_magnitude,
 *   gw_limits_set_max_scratch_words, gw_limits_set_max_units, gw_limits_size, gw_memory_clear,
 *   gw_memory_decay, gw_memory_give_back, gw_memory_init, gw_memory_keep, gw_memory_load,
 *   gw_memory_norm, gw_memory_remap, gw_memory_rescale, gw_memory_residual, gw_memory_save,
 *   gw_memory_size, gw_none_init, gw_qsgd_init, gw_result_name, gw_result_text, gw_topk_init,
 *   gw_version_number, gw_void_read.
 *
 * Each codec has a constructor here, because one that reads spellings would link all of them. A codec
 * that was made so is like any other, in any library. Frames that need what small machines leave out
 * (docs/microcontrollers.md) are refused with GW_DECODE_NOT_BUILT. GW_FRAME_BOUND says how much room a
 * frame needs. A fault of the library, elsewhere GW_ERROR_PANIC, is an undefined instruction here.
 */
",
)];

fn made() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let bindings = cbindgen::Builder::new().with_config(config).with_crate(root).generate().unwrap();
    let mut made = Vec::new();
    bindings.write(&mut made);
    // The manual says once what pointers must be; Rust wants to read it at every function.
    let made =
        String::from_utf8(made).unwrap().replace(" *\n * # Safety\n * As the manual says of pointers.\n", "");
    let (opening, rest) = made.split_once("/**\n").unwrap();
    let (declarations, closing) = rest.split_once("\n#ifdef __cplusplus\n}").unwrap();
    let declarations = format!("{MACROS}\n/**\n{declarations}")
        .replace("#ifdef __cplusplus\nextern \"C\" {\n#endif // __cplusplus\n", "");
    let manual = include_str!("../src/manual.h");
    let cpp = "\n#ifdef __cplusplus\nextern \"C\" {\n#endif  // __cplusplus\n";
    let sections = in_sections(&declarations);
    format!("{manual}\n{}\n{cpp}{sections}\n#ifdef __cplusplus\n}}{closing}", opening.trim())
}

/// The declarations under their headings.
fn in_sections(declarations: &str) -> String {
    let mut headings: Vec<_> = SECTIONS.iter().map(|(heading, _)| *heading).collect();
    headings.dedup();
    let mut sections = vec![String::new(); headings.len()];
    for declaration in declarations.split("\n\n").map(str::trim).filter(|text| !text.is_empty()) {
        let heading = section_of(declaration);
        let place = headings.iter().position(|other| *other == heading).unwrap();
        sections[place] += &format!("\n{declaration}\n");
    }
    let with_headings = headings.iter().zip(sections).map(|(heading, section)| {
        assert!(!section.is_empty(), "nothing is in '{heading}'");
        let opening = OPENINGS.iter().find(|(of, _)| of == heading).map_or("", |(_, opening)| *opening);
        format!("\n/* ======== {heading} ======== */\n{opening}{section}")
    });
    with_headings.collect()
}

fn section_of(declaration: &str) -> &'static str {
    let code = declaration.split_once("*/").unwrap_or_else(|| panic!("without description: {declaration}")).1;
    if code.contains("typedef struct") {
        return OBJECTS;
    }
    let name = code.trim().trim_start_matches("#define ").trim_start_matches("typedef ");
    let start = name
        .find("GW_")
        .or_else(|| name.find("gw_result gw_").map(|at| at + 10))
        .or_else(|| name.find("gw_"));
    let name = &name[start.unwrap()..];
    let name = &name[..name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(name.len())];
    let is_small = SECTIONS
        .iter()
        .any(|(of, names)| *of == NO_HEAP && names.iter().any(|start| name.starts_with(start)));
    if !is_small && ["_size", "_init", "_init_opaque"].iter().any(|end| name.ends_with(end)) {
        return OWN_MEMORY;
    }
    let found = SECTIONS.iter().find(|(_, prefixes)| prefixes.iter().any(|prefix| name.starts_with(prefix)));
    found.unwrap_or_else(|| panic!("no section is for {name}")).0
}

#[test]
fn the_header_is_the_one_that_the_code_makes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/gradwire.h");
    let made = made();
    if std::env::var_os("GRADWIRE_WRITE_HEADER").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = there.lines().zip(made.lines()).position(|(there, made)| there != made);
    let how = "write it with GRADWIRE_WRITE_HEADER=1 cargo test";
    assert!(
        there == made,
        "include/gradwire.h differs after line {differs:?} from what the code makes: {how}"
    );
}
