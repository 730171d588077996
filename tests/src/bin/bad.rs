//! Completes `bad/`: writes every frame of the list below that is not there yet, and its line of the
//! manifest. Files that exist are never touched. Checksums are right, unless they are the point.

use gradwire_tests::manifest;
use gradwire_tests::naive::bits::Bits;
use gradwire_tests::naive::header::{self, fingerprint, frame, varint};
use gradwire_tests::naive::void;
use std::fmt::Write as _;

/// Codecs as the wire numbers them.
const NONE: u8 = 0;
const F16: u8 = 1;
const BF16: u8 = 2;
const TOPK: u8 = 3;
const QSGD: u8 = 5;
const RANDOMK: u8 = 6;
const EFSIGN: u8 = 9;
const DGC: u8 = 7;

/// Kinds as the wire numbers them.
const DENSE: u8 = 0;
const SPARSE: u8 = 1;
const LEVELS: u8 = 2;
const SEEDED: u8 = 3;
const SIGNS: u8 = 5;

/// One string of bytes, the words of its line behind the name, and the bytes.
#[derive(Clone)]
struct Case {
    name: &'static str,
    error: &'static str,
    words: String,
    bytes: Vec<u8>,
}

fn main() {
    let folder = manifest::folder("bad");
    let mut text = manifest::text(&folder);
    let known: Vec<String> =
        manifest::lines(&folder).iter().map(|line| line.value("file").to_owned()).collect();
    for case in headers()
        .into_iter()
        .chain(units())
        .chain(dense())
        .chain(sparse())
        .chain(value_planes())
        .chain(levels())
        .chain(seeded())
        .chain(signs())
        .chain(memories())
        .chain(position_words())
        .chain(unassigned())
        .chain(voids())
    {
        if known.iter().any(|name| name == case.name) {
            continue;
        }
        let path = folder.join(format!("{}.bin", case.name));
        assert!(!path.exists(), "{} exists", path.display());
        std::fs::write(path, case.bytes).expect("the frame can be written");
        let narrow = if has_wide_count(case.name) { " error32=InvalidField(Varint)" } else { "" };
        writeln!(text, "file={} error={}{narrow}{}", case.name, case.error, case.words)
            .expect("strings grow");
    }
    std::fs::write(folder.join("manifest.txt"), text).expect("the manifest can be written");
}

/// Whether the frame states a count that does not fit 32 bits.
fn has_wide_count(name: &str) -> bool {
    let wide = ["entries_largest", "unit_end_overflows", "unit_len_overflows", "unit_start_overflows"];
    wide.contains(&name) || name == "bucket_above_32_bits"
}

fn case(name: &'static str, error: &'static str, len: usize, bytes: Vec<u8>) -> Case {
    Case { name, error, words: format!(" layout={len}"), bytes }
}

fn limited(limit: &str, case: Case) -> Case {
    Case { words: format!("{} limit={limit}", case.words), ..case }
}

/// A frame at step 0 for a flat layout of `len` elements with `count` units whose bytes are `units`.
fn message(codec: u8, len: usize, count: u16, units: &[u8]) -> Vec<u8> {
    frame(codec, count, fingerprint(&[vec![len]]), &[&[0], units].concat())
}

/// The bytes of a unit right behind the one before it.
fn unit(len: usize, kind: u8, body: &[u8]) -> Vec<u8> {
    [&[0, 0][..], &varint(len as u64), &[kind], body].concat()
}

/// A frame whose only unit is the whole layout.
fn whole(codec: u8, len: usize, kind: u8, body: &[u8]) -> Vec<u8> {
    message(codec, len, 1, &unit(len, kind, body))
}

/// A good frame to be spoiled: four dense values.
fn good() -> Vec<u8> {
    whole(NONE, 4, DENSE, &[0; 17])
}

fn spoiled(spoil: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut frame = good();
    spoil(&mut frame);
    header::patch_checksum(&mut frame);
    frame
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn fields(fields: &[(u64, u32)]) -> Vec<u8> {
    let mut bits = Bits::default();
    fields.iter().for_each(|&(value, width)| bits.field(value, width));
    bits.bytes()
}

fn headers() -> Vec<Case> {
    [header_fields(), body_lengths(), checksums(), limits()].concat()
}

fn header_fields() -> Vec<Case> {
    vec![
        case("header_empty", "Truncated{needed:2,actual:0}", 4, vec![]),
        case("header_cut", "Truncated{needed:4,actual:3}", 4, good()[..23].to_vec()),
        case("header_alone", "Truncated{needed:22,actual:0}", 4, good()[..24].to_vec()),
        case("magic", "BadMagic", 4, spoiled(|frame| frame[1] = b'w')),
        case("version_0", "UnsupportedVersion(0)", 4, spoiled(|frame| frame[2] = 0)),
        case("version_2", "UnsupportedVersion(2)", 4, spoiled(|frame| frame[2] = 2)),
        case("codec_unassigned", "UnknownCodec(239)", 4, spoiled(|frame| frame[3] = 0xef)),
        case("codec_experimental", "UnknownCodec(240)", 4, spoiled(|frame| frame[3] = 0xf0)),
        case("codec_reserved", "UnknownCodec(255)", 4, spoiled(|frame| frame[3] = 0xff)),
        case("flag_1", "UnknownFlag(2)", 4, spoiled(|frame| frame[4] = 2)),
        case("flag_15", "UnknownFlag(32769)", 4, spoiled(|frame| (frame[4], frame[5]) = (1, 0x80))),
        case("unit_count_0", "InvalidField(UnitCount)", 4, spoiled(|frame| frame[6] = 0)),
        case("layout_of_another_length", "LayoutMismatch", 5, good()),
    ]
}

fn body_lengths() -> Vec<Case> {
    vec![
        case("body_longer_than_stated", "TrailingBytes", 4, spoiled(|frame| frame.push(0))),
        case(
            "body_shorter_than_stated",
            "Truncated{needed:22,actual:21}",
            4,
            spoiled(|frame| frame.truncate(45)),
        ),
        case(
            "body_bytes_largest",
            "Truncated{needed:4294967295,actual:22}",
            4,
            spoiled(|frame| frame[16..20].fill(255)),
        ),
    ]
}

fn checksums() -> Vec<Case> {
    let flipped = |at: usize| {
        let mut frame = good();
        frame[at] ^= 1;
        frame
    };
    vec![
        case("checksum_of_header", "ChecksumMismatch", 4, flipped(4)),
        case("checksum_of_body", "ChecksumMismatch", 4, flipped(45)),
        case("checksum_itself", "ChecksumMismatch", 4, flipped(20)),
    ]
}

fn limits() -> Vec<Case> {
    let two_units = || message(NONE, 2, 2, &[unit(1, DENSE, &[0; 5]), unit(1, DENSE, &[0; 5])].concat());
    vec![
        limited("body_bytes:21", case("limit_body_bytes", "LimitExceeded(BodyBytes)", 4, good())),
        limited("elements:3", case("limit_elements", "LimitExceeded(Elements)", 4, good())),
        limited(
            "magnitude:1",
            case(
                "limit_magnitude",
                "LimitExceeded(Magnitude)",
                1,
                whole(NONE, 1, DENSE, &[0, 1, 0, 128, 63]),
            ),
        ),
        limited("units:1", case("limit_units", "LimitExceeded(Units)", 2, two_units())),
        limited("elements:1", case("limit_elements_of_two_units", "LimitExceeded(Elements)", 2, two_units())),
    ]
}

/// A frame over four elements that states one unit, with all that follows its header.
fn one_unit(body: &[u8]) -> Vec<u8> {
    frame(NONE, 1, fingerprint(&[vec![4]]), body)
}

fn units() -> Vec<Case> {
    [steps(), unit_counts(), unit_ids(), unit_places(), unit_kinds()].concat()
}

fn steps() -> Vec<Case> {
    let body = one_unit;
    vec![
        case("step_missing", "Truncated{needed:1,actual:0}", 4, body(&[])),
        case(
            "step_superfluous_byte",
            "InvalidField(Varint)",
            4,
            body(&[&[0x80, 0][..], &unit(4, DENSE, &[0; 17])].concat()),
        ),
        case("step_above_64_bits", "InvalidField(Varint)", 4, body(&[&[0xff; 9][..], &[2]].concat())),
        case("step_never_ends", "InvalidField(Varint)", 4, body(&[0xff; 11])),
    ]
}

fn unit_counts() -> Vec<Case> {
    let body = one_unit;
    vec![
        case("unit_missing", "Truncated{needed:1,actual:0}", 4, body(&[0])),
        case(
            "unit_missing_after_first",
            "Truncated{needed:1,actual:0}",
            4,
            message(NONE, 4, 2, &unit(4, DENSE, &[0; 17])),
        ),
        case(
            "unit_left_over",
            "TrailingBytes",
            4,
            message(NONE, 4, 1, &[unit(2, DENSE, &[0; 9]), unit(2, DENSE, &[0; 9])].concat()),
        ),
    ]
}

fn unit_ids() -> Vec<Case> {
    let (body, huge) = (one_unit, varint(u64::MAX));
    vec![
        case(
            "unit_id_above_32_bits",
            "InvalidField(Unit)",
            4,
            body(&[&[0][..], &varint(1 << 32), &[0, 4, 0], &[0; 17]].concat()),
        ),
        case(
            "unit_id_above_64_bits",
            "InvalidField(Unit)",
            2,
            message(
                NONE,
                2,
                2,
                &[unit(1, DENSE, &[0; 5]), [&huge[..], &[0, 1, 0], &[0; 5]].concat()].concat(),
            ),
        ),
    ]
}

fn unit_places() -> Vec<Case> {
    let (body, huge) = (one_unit, varint(u64::MAX));
    vec![
        case("unit_beyond_layout", "UnitOutOfRange", 4, body(&[&[0, 0, 0, 5, 0][..], &[0; 21]].concat())),
        case(
            "unit_starts_beyond_layout",
            "UnitOutOfRange",
            4,
            body(&[&[0, 0, 1, 4, 0][..], &[0; 17]].concat()),
        ),
        case(
            "unit_end_overflows",
            "UnitOutOfRange",
            4,
            body(&[&[0, 0][..], &huge, &[4, 0], &[0; 17]].concat()),
        ),
        case(
            "unit_len_overflows",
            "UnitOutOfRange",
            4,
            body(&[&[0, 0, 1][..], &huge, &[0], &[0; 17]].concat()),
        ),
        case(
            "unit_start_overflows",
            "UnitOutOfRange",
            2,
            message(
                NONE,
                2,
                2,
                &[unit(1, DENSE, &[0; 5]), [&[0][..], &huge, &[1, 0], &[0; 5]].concat()].concat(),
            ),
        ),
        case(
            "unit_gap_superfluous_byte",
            "InvalidField(Varint)",
            4,
            body(&[&[0, 0, 0x80, 0, 4, 0][..], &[0; 17]].concat()),
        ),
    ]
}

fn unit_kinds() -> Vec<Case> {
    let body = one_unit;
    vec![
        case("kind_missing", "Truncated{needed:1,actual:0}", 4, body(&[0, 0, 0, 4])),
        case("kind_4", "InvalidField(Kind)", 4, whole(NONE, 4, 4, &[0; 17])),
        case("kind_255", "InvalidField(Kind)", 4, whole(NONE, 4, 255, &[0; 17])),
        case("kind_experimental", "InvalidField(Kind)", 4, whole(NONE, 4, 0xf0, &[0; 17])),
        case("kind_sparse_in_none", "InvalidField(Kind)", 4, whole(NONE, 4, SPARSE, &[0])),
        case("kind_sparse_in_qsgd", "InvalidField(Kind)", 4, whole(QSGD, 4, SPARSE, &[0])),
        case("kind_seeded_in_dgc", "InvalidField(Kind)", 4, whole(DGC, 4, SEEDED, &[0])),
        case(
            "kind_levels_in_topk",
            "InvalidField(Kind)",
            4,
            whole(TOPK, 4, LEVELS, &[4, 4, 0, 0, 0, 0, 0, 0]),
        ),
        case("kind_seeded_in_f16", "InvalidField(Kind)", 4, whole(F16, 4, SEEDED, &[0; 10])),
    ]
}

fn dense() -> Vec<Case> {
    let f32s = |values: &[f32]| whole(NONE, values.len(), DENSE, &[&[0][..], &floats(values)].concat());
    vec![
        case("dense_format_missing", "Truncated{needed:1,actual:0}", 4, whole(NONE, 4, DENSE, &[])),
        case("dense_codebook", "InvalidField(Coding)", 4, whole(NONE, 4, DENSE, &[3; 20])),
        case("dense_format_4", "InvalidField(Coding)", 4, whole(NONE, 4, DENSE, &[4; 20])),
        case(
            "dense_f16_in_none",
            "InvalidField(Coding)",
            4,
            whole(NONE, 4, DENSE, &[&[1][..], &[0; 8]].concat()),
        ),
        case(
            "dense_f16_in_bf16",
            "InvalidField(Coding)",
            4,
            whole(BF16, 4, DENSE, &[&[1][..], &[0; 8]].concat()),
        ),
        case(
            "dense_bf16_in_topk",
            "InvalidField(Coding)",
            4,
            whole(TOPK, 4, DENSE, &[&[2][..], &[0; 8]].concat()),
        ),
        case("dense_cut", "Truncated{needed:16,actual:15}", 4, whole(NONE, 4, DENSE, &[0; 16])),
        case("dense_nan", "NonFiniteValue", 2, f32s(&[1.0, f32::NAN])),
        case("dense_infinity", "NonFiniteValue", 2, f32s(&[f32::INFINITY, 1.0])),
        case("dense_minus_infinity", "NonFiniteValue", 2, f32s(&[1.0, f32::NEG_INFINITY])),
        case("dense_f16_infinity", "NonFiniteValue", 2, whole(F16, 2, DENSE, &[1, 0, 0, 0x00, 0x7c])),
        case("dense_bf16_nan", "NonFiniteValue", 2, whole(BF16, 2, DENSE, &[2, 0, 0, 0xc0, 0x7f])),
        case(
            "dense_nan_in_second_unit",
            "NonFiniteValue",
            2,
            message(NONE, 2, 2, &[unit(1, DENSE, &[0; 5]), unit(1, DENSE, &[0, 0, 0, 0xc0, 0x7f])].concat()),
        ),
    ]
}

/// A sparse body over `len` coordinates with `k` entries, all of value 1.
fn entries(name: &'static str, error: &'static str, len: usize, k: u64, coder: u8, section: &[u8]) -> Case {
    let body = [&varint(k)[..], &[coder], section, &floats(&vec![1.0; k as usize])].concat();
    case(name, error, len, whole(TOPK, len, SPARSE, &body))
}

/// A Rice section, its length in front.
fn rice(block_log2: u8, planes: [&[u8]; 3]) -> Vec<u8> {
    let section = [&[block_log2], planes[0], planes[1], planes[2]].concat();
    [varint(section.len() as u64), section].concat()
}

/// A section of positions in chunks, its length in front.
fn chunks(chunk_log2: u8, least: u64, width: u8, stream: &[u8]) -> Vec<u8> {
    section(&[&[chunk_log2][..], &varint(least), &[width], stream].concat())
}

/// A sparse body over four coordinates, all sent, whose values are this codebook section.
fn book(name: &'static str, error: &'static str, section: &[u8]) -> Case {
    case(name, error, 4, whole(TOPK, 4, SPARSE, &[&[4, 0x31, 0b1111][..], section].concat()))
}

/// The table that gives all slots to symbol 0 of at least two: gamma(25), then twelve zeros.
fn one_symbol_table() -> Vec<u8> {
    fields(&[(0, 4), (1, 1), (25 - 16, 4), (0, 12)])
}

/// One lane, blocks of 2¹⁸ symbols, one table.
const SHAPE: u8 = 0x10;

/// Bit of the shape that says that classes follow.
const CLASSES: u8 = 0x80;

fn section(bytes: &[u8]) -> Vec<u8> {
    [&varint(bytes.len() as u64)[..], bytes].concat()
}

/// A rANS section with one table.
fn rans(table: &[u8], rest: &[u8]) -> Vec<u8> {
    section(&[&[SHAPE][..], table, rest].concat())
}

/// A unit of eight coordinates, all of them entries of value 0, under an adaptive index coder in its
/// memoryless form.
fn unit_of_eight(coder: u8) -> Vec<u8> {
    unit(8, SPARSE, &[&[8, coder, 1, 8][..], &[0; 32]].concat())
}

/// The same with a second unit, of one entry and so of one word, that has a bit in its padding. A reader that
/// counts too many words for the first unit refuses the frame under another name.
fn eight_and_padding(coder: u8) -> Vec<u8> {
    let one = unit(1, SPARSE, &[&[1, 1, 3][..], &[0; 4]].concat());
    message(TOPK, 9, 2, &[unit_of_eight(coder), one].concat())
}

/// Limits of working memory at and below what positions take.
fn position_words() -> Vec<Case> {
    let eight = |coder| message(TOPK, 8, 1, &unit_of_eight(coder));
    let refused = "LimitExceeded(ScratchWords)";
    vec![
        limited("scratch_words:4959", case("limit_scratch_words_of_gaps", refused, 8, eight(3))),
        limited(
            "scratch_words:4961",
            case("limit_scratch_words_of_gaps_reached", "InvalidField(Bitmap)", 9, eight_and_padding(3)),
        ),
        limited("scratch_words:2383", case("limit_scratch_words_of_coordinates", refused, 8, eight(4))),
        limited(
            "scratch_words:2385",
            case(
                "limit_scratch_words_of_coordinates_reached",
                "InvalidField(Bitmap)",
                9,
                eight_and_padding(4),
            ),
        ),
    ]
}

fn sparse() -> Vec<Case> {
    [
        entry_counts(),
        raw_indices(),
        bitmaps(),
        rice_fields(),
        rice_planes(),
        chunk_fields(),
        chunk_streams(),
        contexts(),
        plain_values(),
        rans_books(),
        prefix_books(),
        books(),
    ]
    .concat()
}

/// A frame whose only unit is this sparse body.
fn sparse_body(len: usize, body: &[u8]) -> Vec<u8> {
    whole(TOPK, len, SPARSE, body)
}

fn entry_counts() -> Vec<Case> {
    vec![
        case("entries_more_than_coordinates", "InvalidField(Entries)", 4, sparse_body(4, &[5, 0])),
        case("entries_largest", "InvalidField(Entries)", 4, sparse_body(4, &varint(u64::MAX))),
        case("entries_missing", "Truncated{needed:1,actual:0}", 4, sparse_body(4, &[])),
        case("coding_missing", "Truncated{needed:1,actual:0}", 4, sparse_body(4, &[1])),
        entries("coding_index_5", "InvalidField(Coding)", 4, 1, 5, &[0]),
        entries("coding_index_15", "InvalidField(Coding)", 4, 1, 15, &[0]),
        entries("coding_values_7", "InvalidField(Coding)", 4, 1, 0x70, &[0]),
        limited("entries:1", entries("limit_entries", "LimitExceeded(Entries)", 8, 2, 1, &[3])),
        limited(
            "entries:3",
            case("limit_entries_of_two_units", "LimitExceeded(Entries)", 8, {
                let own = unit(4, SPARSE, &[&[2, 1, 3][..], &floats(&[1.0; 2])].concat());
                message(TOPK, 8, 2, &[own.clone(), own].concat())
            }),
        ),
    ]
}

fn raw_indices() -> Vec<Case> {
    let raw = |indices: &[u64]| fields(&indices.iter().map(|&index| (index, 3)).collect::<Vec<_>>());
    vec![
        entries("raw_index_beyond_unit", "IndexOutOfRange", 5, 1, 0, &raw(&[7])),
        entries("raw_index_first_beyond_unit", "IndexOutOfRange", 5, 2, 0, &raw(&[0, 5])),
        entries("raw_indices_equal", "IndexOutOfRange", 5, 2, 0, &raw(&[3, 3])),
        entries("raw_indices_descend", "IndexOutOfRange", 5, 3, 0, &raw(&[1, 3, 2])),
        entries("raw_padding", "TrailingBytes", 5, 1, 0, &[0b1000]),
        case("raw_cut", "Truncated{needed:2,actual:1}", 5, sparse_body(5, &[5, 0, 0])),
    ]
}

fn bitmaps() -> Vec<Case> {
    vec![
        entries("bitmap_too_few", "InvalidField(Bitmap)", 9, 2, 1, &[1, 0]),
        entries("bitmap_too_many", "InvalidField(Bitmap)", 9, 2, 1, &[7, 0]),
        entries("bitmap_one_in_padding", "InvalidField(Bitmap)", 9, 2, 1, &[1, 2]),
        entries("bitmap_one_more_in_padding", "InvalidField(Bitmap)", 9, 2, 1, &[3, 0x80]),
        case("bitmap_cut", "Truncated{needed:2,actual:1}", 9, sparse_body(9, &[1, 1, 1])),
    ]
}

/// Rice sections whose fields are refused, or that end too early.
fn rice_fields() -> Vec<Case> {
    vec![
        entries("rice_empty", "Truncated{needed:1,actual:0}", 9, 2, 2, &[0]),
        entries("rice_length_beyond_frame", "Truncated{needed:200,actual:8}", 9, 2, 2, &[200, 1]),
        entries("rice_block_3", "InvalidField(Rice)", 9, 2, 2, &rice(3, [&[0], &[], &[3]])),
        entries("rice_block_17", "InvalidField(Rice)", 9, 2, 2, &rice(17, [&[0], &[], &[3]])),
        entries("rice_no_parameters", "Truncated{needed:1,actual:0}", 9, 2, 2, &rice(7, [&[], &[], &[]])),
        entries(
            "rice_second_parameter_missing",
            "Truncated{needed:5,actual:2}",
            33,
            33,
            2,
            &rice(4, [&[0], &[], &[]]),
        ),
        entries("rice_lows_missing", "Truncated{needed:8,actual:1}", 9, 2, 2, &rice(7, [&[31], &[], &[3]])),
        entries("rice_highs_missing", "Truncated{needed:1,actual:0}", 9, 2, 2, &rice(7, [&[0], &[], &[]])),
        entries(
            "rice_highs_end",
            "Truncated{needed:1,actual:0}",
            90,
            2,
            2,
            &rice(7, [&[0], &[], &[1, 0, 0]]),
        ),
    ]
}

/// Positions in chunks whose fields are refused, or that end too early.
fn chunk_fields() -> Vec<Case> {
    let missing = "Truncated{needed:1,actual:0}";
    vec![
        entries("chunks_empty", missing, 50, 2, 6, &[0]),
        entries("chunks_of_32", "InvalidField(Chunks)", 50, 1, 6, &chunks(5, 0, 0, &[1])),
        entries("chunks_of_131072", "InvalidField(Chunks)", 50, 1, 6, &chunks(17, 0, 0, &[1])),
        entries("chunks_width_18", "InvalidField(Chunks)", 50, 1, 6, &chunks(6, 0, 18, &[1])),
        entries("chunks_no_stream", missing, 50, 1, 6, &chunks(6, 0, 0, &[])),
        entries("chunks_stream_ends", missing, 50, 1, 6, &chunks(6, 0, 0, &[0])),
    ]
}

/// Positions in chunks that say what cannot be, or hold more than is read.
fn chunk_streams() -> Vec<Case> {
    let outside = "IndexOutOfRange";
    vec![
        entries("chunks_more_entries_than_there_are", outside, 100, 2, 6, &chunks(6, 3, 0, &[1])),
        entries("chunks_least_beyond_64_bits", outside, 100, 2, 6, &chunks(6, u64::MAX, 1, &[1])),
        entries("chunks_more_entries_than_the_last_holds", outside, 100, 40, 6, &chunks(6, 0, 0, &[1, 1])),
        entries("chunks_gap_beyond_chunk", outside, 100, 1, 6, &chunks(6, 1, 0, &[0x10])),
        entries("chunks_low_beyond_chunk", outside, 50, 1, 6, &chunks(6, 0, 0, &[0xf8])),
        entries("chunks_low_missing", "TrailingBytes", 50, 2, 6, &chunks(6, 0, 0, &[0x81])),
        entries("chunks_padding", "TrailingBytes", 50, 1, 6, &chunks(6, 0, 0, &[0x21])),
        entries("chunks_wasted_byte", "TrailingBytes", 50, 1, 6, &chunks(6, 0, 0, &[1, 0])),
    ]
}

/// Rice sections whose planes say what cannot be, or hold more than is read.
fn rice_planes() -> Vec<Case> {
    vec![
        entries("rice_gap_beyond_unit", "IndexOutOfRange", 9, 1, 2, &rice(7, [&[0], &[], &[0, 0, 1]])),
        entries("rice_index_beyond_unit", "IndexOutOfRange", 9, 2, 2, &rice(7, [&[0], &[], &[0x20, 0x10]])),
        entries("rice_low_beyond_unit", "IndexOutOfRange", 9, 1, 2, &rice(7, [&[4], &[15], &[1]])),
        entries("rice_parameter_padding", "TrailingBytes", 9, 2, 2, &rice(7, [&[0x20], &[], &[3]])),
        entries("rice_low_padding", "TrailingBytes", 9, 1, 2, &rice(7, [&[1], &[2], &[1]])),
        entries("rice_high_padding", "TrailingBytes", 9, 2, 2, &rice(7, [&[0], &[], &[7]])),
        entries("rice_wasted_byte", "TrailingBytes", 9, 2, 2, &rice(7, [&[0], &[], &[3, 0]])),
    ]
}

fn contexts() -> Vec<Case> {
    vec![
        entries("context_length_beyond_frame", "Truncated{needed:200,actual:4}", 9, 1, 3, &[200, 1]),
        entries("context_column_of_none", "IndexOutOfRange", 9, 1, 3, &[4, 0x10, 0, 0, 0]),
        entries("context_gap_beyond_unit", "IndexOutOfRange", 9, 1, 3, &[4, 0xff, 0xff, 0xff, 0xff]),
        entries("context_memoryless_beyond_unit", "IndexOutOfRange", 9, 1, 3, &[0]),
        entries("context_too_few_bytes", "Truncated{needed:1,actual:0}", 9000, 8000, 3, &[0]),
        entries("context_max_length_beyond_frame", "Truncated{needed:200,actual:4}", 9, 1, 4, &[200, 1]),
        entries("context_max_coordinates_run_out", "IndexOutOfRange", 9, 1, 4, &[4, 0xff, 0xff, 0xff, 0xff]),
        entries("context_max_memoryless_beyond_unit", "IndexOutOfRange", 9, 1, 4, &[0]),
        entries("context_max_too_few_bytes", "Truncated{needed:1,actual:0}", 9000, 8000, 4, &[0]),
    ]
}

fn plain_values() -> Vec<Case> {
    vec![
        case(
            "sparse_values_cut",
            "Truncated{needed:8,actual:7}",
            9,
            sparse_body(9, &[&[2, 0x01, 3, 0][..], &[0; 7]].concat()),
        ),
        case(
            "sparse_nan",
            "NonFiniteValue",
            4,
            sparse_body(4, &[&[1, 0x01, 1][..], &floats(&[f32::NAN])].concat()),
        ),
        case("sparse_f16_nan", "NonFiniteValue", 4, sparse_body(4, &[1, 0x11, 1, 0x01, 0x7c])),
        case("sparse_bf16_infinity", "NonFiniteValue", 4, sparse_body(4, &[1, 0x21, 1, 0x80, 0xff])),
    ]
}

/// bfloat16 1.0, as the wire has it.
const ONE: [u8; 2] = [0x80, 0x3f];

/// One magnitude, and a rANS section for its signs.
fn rans_book(name: &'static str, error: &'static str, section: &[u8]) -> Case {
    book(name, error, &[&[0x10][..], &ONE, section].concat())
}

/// 2^`log2` magnitudes, and a section of prefix codes.
fn prefix_book(name: &'static str, error: &'static str, log2: u8, section: &[u8]) -> Case {
    let magnitudes = ONE.repeat(1 << log2);
    book(name, error, &[&[0x20 | log2], &magnitudes[..], &varint(section.len() as u64), section].concat())
}

fn rans_books() -> Vec<Case> {
    vec![
        rans_book("codebook_table_empty", "InvalidField(Table)", &rans(&[], &[])),
        rans_book(
            "codebook_table_padding",
            "TrailingBytes",
            &rans(&fields(&[(0, 4), (1, 1), (25 - 16, 4), (0, 12), (4, 3)]), &[0; 8]),
        ),
        rans_book("codebook_stream_cut", "Truncated{needed:4,actual:3}", &rans(&one_symbol_table(), &[0; 3])),
        rans_book("codebook_rans_beyond_frame", "Truncated{needed:100,actual:3}", &[100, 0, 0, 0]),
        rans_book(
            "codebook_with_classes",
            "InvalidField(Classes)",
            &section(&two_classes(&rans(&[], &[]), &[])),
        ),
    ]
}

fn prefix_books() -> Vec<Case> {
    vec![
        prefix_book("prefix_of_16_magnitudes", "InvalidField(Packing)", 4, &[0; 9]),
        prefix_book("prefix_without_codes", "InvalidField(Table)", 1, &[0, 0]),
        prefix_book(
            "prefix_incomplete",
            "InvalidField(Table)",
            2,
            &fields(&[(1, 3), (2, 3), (3, 3), (0, 3), (0, 20)]),
        ),
        prefix_book(
            "prefix_of_too_many_codes",
            "InvalidField(Table)",
            2,
            &fields(&[(1, 3), (2, 3), (2, 3), (7, 3), (0, 20)]),
        ),
        prefix_book("prefix_lengths_cut", "InvalidField(Table)", 3, &[0; 2]),
        prefix_book("prefix_codes_cut", "Truncated{needed:2,actual:1}", 1, &[0b0000_1001]),
        prefix_book("prefix_longer_than_its_codes", "TrailingBytes", 1, &[0b0000_1001, 0, 0]),
        prefix_book("prefix_padding", "TrailingBytes", 1, &[0b0000_1001, 0x40]),
    ]
}

fn books() -> Vec<Case> {
    let one = ONE[0];
    let two = |a: [u8; 2], b: [u8; 2], symbols: &[u8]| [&[1][..], &a, &b, symbols].concat();
    let fine = ONE;
    vec![
        book("prefix_beyond_frame", "Truncated{needed:9,actual:2}", &[0x21, one, 0x3f, one, 0x3f, 9, 0, 0]),
        book("codebook_missing", "Truncated{needed:1,actual:0}", &[]),
        book("codebook_of_256", "InvalidField(Codebook)", &[8; 600]),
        book("codebook_packing_4", "InvalidField(Packing)", &[0x41, one, 0x3f, one, 0x3f, 0]),
        book("codebook_changes_missing", "Truncated{needed:1,actual:0}", &[0x31, one, 0x3f, one, 0x3f]),
        book(
            "codebook_changes_table_empty",
            "InvalidField(Table)",
            &[&[0x30, one, 0x3f][..], &rans(&[], &[])].concat(),
        ),
        book(
            "codebook_changes_with_classes",
            "InvalidField(Classes)",
            &[&[0x30, one, 0x3f][..], &section(&two_classes(&rans(&[], &[]), &[]))].concat(),
        ),
        book("codebook_packing_2", "InvalidField(Packing)", &[0x20, one, 0x3f, 0]),
        book("codebook_cut", "Truncated{needed:4,actual:3}", &[1, one, 0x3f, one]),
        book("codebook_symbols_cut", "Truncated{needed:1,actual:0}", &two(fine, fine, &[])),
        book("codebook_descends", "InvalidField(Codebook)", &two([0, 0x40], fine, &[0])),
        book("codebook_zero", "InvalidField(Codebook)", &two([0, 0], fine, &[0])),
        book("codebook_negative", "InvalidField(Codebook)", &two([one, 0xbf], fine, &[0])),
        book("codebook_nan", "NonFiniteValue", &two(fine, [0xc0, 0x7f], &[0])),
        book("codebook_infinity", "NonFiniteValue", &two(fine, [one, 0x7f], &[0])),
        book("codebook_padding", "TrailingBytes", &[0, one, 0x3f, 0x10]),
        limited(
            "magnitude:1.5",
            book("limit_magnitude_of_codebook", "LimitExceeded(Magnitude)", &two(fine, [0, 0x40], &[0])),
        ),
    ]
}

/// A sparse body over four coordinates, all sent, whose values are this section in planes of f32 (4), f16 (5)
/// or bf16 (6).
fn value_plane(name: &'static str, error: &'static str, format: u8, section: &[u8]) -> Case {
    case(name, error, 4, whole(TOPK, 4, SPARSE, &[&[4, format << 4 | 1, 0b1111][..], section].concat()))
}

fn value_planes() -> Vec<Case> {
    // All values have the one head, 127 behind 23 bits: magnitudes from 1 to below 2.
    let symbols = rans(&one_symbol_table(), &[0, 0, 1, 0]);
    let ones = |tails: &[u8]| [&[23, 0, 127][..], &symbols, tails].concat();
    let head =
        |shift: u8, heads: u8, low: u64| [&[shift, heads][..], &varint(low), &symbols, &[0; 12]].concat();
    vec![
        value_plane("value_planes_missing", "Truncated{needed:1,actual:0}", 4, &[]),
        value_plane("value_planes_without_heads", "Truncated{needed:1,actual:0}", 4, &[23]),
        value_plane("value_planes_shift_24", "InvalidField(Planes)", 4, &head(24, 0, 1)),
        value_plane("value_planes_f16_shift_11", "InvalidField(Planes)", 5, &head(11, 0, 1)),
        value_plane("value_planes_bf16_shift_8", "InvalidField(Planes)", 6, &head(8, 0, 1)),
        value_plane("value_planes_of_129_heads", "InvalidField(Planes)", 4, &head(20, 128, 1)),
        value_plane("value_planes_beyond_32_bits", "InvalidField(Planes)", 4, &head(0, 0, 1 << 32)),
        value_plane("value_planes_to_infinity", "InvalidField(Planes)", 4, &head(23, 1, 254)),
        value_plane("value_planes_f16_to_infinity", "InvalidField(Planes)", 5, &head(10, 1, 30)),
        value_plane("value_planes_bf16_to_infinity", "InvalidField(Planes)", 6, &head(7, 1, 254)),
        value_plane("value_planes_without_symbols", "Truncated{needed:1,actual:0}", 4, &[23, 0, 127]),
        value_plane(
            "value_planes_table_empty",
            "InvalidField(Table)",
            4,
            &[&[0, 0, 127][..], &rans(&[], &[])].concat(),
        ),
        value_plane(
            "value_planes_with_classes",
            "InvalidField(Classes)",
            4,
            &[&[0, 0, 127][..], &section(&two_classes(&rans(&[], &[]), &[]))].concat(),
        ),
        value_plane("value_planes_tails_cut", "Truncated{needed:12,actual:11}", 4, &ones(&[0; 11])),
        value_plane(
            "value_planes_tail_padding",
            "TrailingBytes",
            4,
            &ones(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10]),
        ),
        limited(
            "magnitude:1.5",
            value_plane(
                "limit_magnitude_of_planes",
                "LimitExceeded(Magnitude)",
                4,
                &ones(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x0e]),
            ),
        ),
    ]
}

/// A section of two classes, with segments of 64 symbols, from that of the differences and what follows it.
fn two_classes(differences: &[u8], rest: &[u8]) -> Vec<u8> {
    [&[SHAPE | CLASSES, 0x11][..], differences, rest].concat()
}

/// A levels body over five coordinates in one bucket of norm 1.
fn level(name: &'static str, error: &'static str, form: u8, packed: &[u8]) -> Case {
    let body = [&[form, 0, 5][..], &floats(&[1.0]), packed].concat();
    case(name, error, 5, whole(QSGD, 5, LEVELS, &body))
}

/// A levels body over five coordinates in one bucket of this norm, all levels zero in fixed fields of two
/// bits.
fn norm(name: &'static str, error: &'static str, bits: u8, norm: f32) -> Case {
    let body = [&[bits, 0, 5][..], &floats(&[norm]), &vec![0; (5 * usize::from(bits)).div_ceil(8)]].concat();
    case(name, error, 5, whole(QSGD, 5, LEVELS, &body))
}

/// A levels body over five coordinates in one bucket, whose norm is in planes.
fn planes(name: &'static str, error: &'static str, norms: &[u8]) -> Case {
    case(name, error, 5, whole(QSGD, 5, LEVELS, &[&[2, 0x10, 5][..], norms].concat()))
}

fn levels() -> Vec<Case> {
    [
        forms(),
        level_contexts(),
        norms(),
        fixed_levels(),
        counted_levels(),
        elias_levels(),
        norm_planes(),
        rans_shapes(),
        rans_classes(),
        rans_tables(),
        rans_streams(),
    ]
    .concat()
}

/// A frame whose only unit is this levels body.
fn levels_body(body: &[u8]) -> Vec<u8> {
    whole(QSGD, 5, LEVELS, body)
}

/// Levels in a rANS section.
const RANS_FORM: u8 = 0x22;

fn forms() -> Vec<Case> {
    let body = levels_body;
    vec![
        case("form_missing", "Truncated{needed:1,actual:0}", 5, body(&[])),
        level("bits_0", "InvalidField(Bits)", 0, &[0; 9]),
        level("bits_1", "InvalidField(Bits)", 1, &[0; 9]),
        level("bits_9", "InvalidField(Bits)", 9, &[0; 9]),
        level("bits_15", "InvalidField(Bits)", 15, &[0; 9]),
        case("norm_missing", "Truncated{needed:1,actual:0}", 5, body(&[2])),
        case("norm_2", "InvalidField(Norm)", 5, body(&[2, 2, 5, 0, 0, 0, 0, 0, 0])),
        case("norm_3", "InvalidField(Norm)", 5, body(&[2, 3, 5, 0, 0, 0, 0, 0, 0])),
        case("norm_coding_2", "InvalidField(Norm)", 5, body(&[2, 0x20, 5, 0, 0, 0, 0, 0, 0])),
        case("bucket_0", "InvalidField(Bucket)", 5, body(&[2, 0, 0, 0, 0, 0, 0, 0])),
        case(
            "bucket_above_32_bits",
            "InvalidField(Bucket)",
            5,
            body(&[&[2, 0][..], &varint(1 << 32), &[0; 6]].concat()),
        ),
        case("bucket_missing", "Truncated{needed:1,actual:0}", 5, body(&[2, 0])),
        level("packing_4", "InvalidField(Packing)", 0x42, &[0; 9]),
    ]
}

fn level_contexts() -> Vec<Case> {
    let body = levels_body;
    vec![
        case("context_first_0", "InvalidField(Bucket)", 5, body(&[0x44, 0x20, 5, 0, 0])),
        case("context_first_above_bucket", "InvalidField(Bucket)", 5, body(&[0x44, 0x20, 5, 6, 0])),
        case("context_cut", "Truncated{needed:4,actual:3}", 5, body(&[0x44, 0x20, 5, 5, 4, 0, 0, 0])),
        // A norm that is not 0, whose exponent is 255; and one beyond the limit.
        case("context_exponent_255", "InvalidField(Norm)", 5, body(&[0x44, 0x20, 5, 5, 2, 0xff, 0xff])),
        limited(
            "magnitude:1",
            case(
                "limit_magnitude_in_context",
                "LimitExceeded(Magnitude)",
                5,
                body(&[0x44, 0x20, 5, 5, 2, 0xff, 0x00]),
            ),
        ),
        limited(
            "scratch_words:4",
            case(
                "limit_scratch_words_of_context",
                "LimitExceeded(ScratchWords)",
                5,
                body(&[0x44, 0x20, 5, 5, 0]),
            ),
        ),
    ]
}

/// The narrowest levels of which the largest, of the largest norm, overflows.
fn overflowing_bits() -> u8 {
    let is_beyond = |bits: &u8| {
        let s = f32::from((1u8 << (bits - 1)) - 1);
        (f32::MAX / s * s).is_infinite()
    };
    (2..=8u8).find(is_beyond).expect("for some width the largest level of the largest norm overflows")
}

fn norms() -> Vec<Case> {
    let body = levels_body;
    let largest = overflowing_bits();
    vec![
        case("norms_cut", "Truncated{needed:8,actual:7}", 5, body(&[&[2, 0, 3][..], &[0; 7]].concat())),
        norm("norm_nan", "NonFiniteValue", 2, f32::NAN),
        norm("norm_infinite", "NonFiniteValue", 2, f32::INFINITY),
        norm("norm_negative", "InvalidField(Scale)", 2, -1.0),
        norm("norm_negative_zero", "InvalidField(Scale)", 2, -0.0),
        norm("norm_whose_largest_level_overflows", "InvalidField(Scale)", largest, f32::MAX),
        limited("magnitude:1", norm("limit_magnitude_of_norm", "LimitExceeded(Magnitude)", 2, 1.5)),
    ]
}

/// Levels in fields of a fixed width, or five ternary ones a byte.
fn fixed_levels() -> Vec<Case> {
    vec![
        level("packing_ternary_of_3_bits", "InvalidField(Packing)", 0x33, &[0]),
        level("fixed_cut", "Truncated{needed:2,actual:1}", 2, &[0]),
        level("fixed_padding", "TrailingBytes", 2, &[0, 0x04]),
        level("ternary_cut", "Truncated{needed:1,actual:0}", 0x32, &[]),
        level("ternary_byte_243", "TrailingBytes", 0x32, &[243]),
        case("ternary_digit_in_padding", "TrailingBytes", 4, {
            whole(QSGD, 4, LEVELS, &[&[0x32, 0, 5][..], &floats(&[1.0]), &[81]].concat())
        }),
    ]
}

/// Levels up to a number that the body states.
fn counted_levels() -> Vec<Case> {
    let body = levels_body;
    let stated = |form: u8, levels: u8, rest: &[u8]| {
        levels_body(&[&[form, 0, levels, 5][..], &floats(&[1.0]), rest].concat())
    };
    vec![
        case("levels_missing", "Truncated{needed:1,actual:0}", 5, body(&[10, 0])),
        case("levels_0", "InvalidField(Bits)", 5, stated(10, 0, &[0; 9])),
        case("levels_128", "InvalidField(Bits)", 5, stated(10, 128, &[0; 9])),
        // 6 and -7 of 5, in fields of four bits.
        case("level_above_the_stated", "InvalidField(Level)", 5, stated(10, 5, &[0x60, 0, 0])),
        case("negative_level_above_the_stated", "InvalidField(Level)", 5, stated(10, 5, &[0, 0, 0x0f])),
        case("ternary_of_stated_levels", "InvalidField(Packing)", 5, stated(0x3a, 1, &[0])),
        case(
            "level_above_the_stated_in_context",
            "InvalidField(Level)",
            5,
            body(&[&[0x4a, 0x20, 5, 5, 5][..], &varint(ABOVE_FIVE.len() as u64), &ABOVE_FIVE].concat()),
        ),
    ]
}

/// A stream under context of five coordinates with levels up to 5, one of which is 6.
const ABOVE_FIVE: [u8; 8] = [0x6b, 0x30, 0xf9, 0x0e, 0xc7, 0xdd, 0x01, 0xe4];

fn elias_levels() -> Vec<Case> {
    let elias = 0x12;
    vec![
        level("elias_beyond_frame", "Truncated{needed:9,actual:1}", elias, &[9, 0]),
        level("elias_ends", "Truncated{needed:2,actual:1}", elias, &[1, 0b1001_1001]),
        level("elias_wasted_byte", "TrailingBytes", elias, &[2, 0, 0]),
        level("elias_padding", "TrailingBytes", elias, &[1, 0x20]),
    ]
}

fn norm_planes() -> Vec<Case> {
    // Exponents of one norm: the table that gives all slots to exponent 0, or to exponent 1.
    let zero = rans(&one_symbol_table(), &[0, 0, 1, 0]);
    let one =
        rans(&fields(&[(0, 1), (1, 1), (0, 1), (1, 1), (0, 3), (1, 1), (13 - 8, 3), (0, 12)]), &[0, 0, 1, 0]);
    vec![
        planes(
            "norm_planes_more_than_buckets",
            "InvalidField(Norm)",
            &[&zero[..], &[2, 0, 0, 0, 0, 0, 0]].concat(),
        ),
        planes("norm_planes_cut", "Truncated{needed:3,actual:2}", &[&zero[..], &[1, 0, 0]].concat()),
        planes(
            "norm_planes_another_number",
            "InvalidField(Norm)",
            &[&zero[..], &[1, 0, 0, 0, 0, 0]].concat(),
        ),
        planes("norm_planes_padding", "TrailingBytes", &[&one[..], &[1, 0, 0, 0x80, 0, 0]].concat()),
        planes(
            "norm_planes_with_classes",
            "InvalidField(Classes)",
            &section(&two_classes(&rans(&[], &[]), &[])),
        ),
        limited(
            "scratch_words:4096",
            planes(
                "limit_scratch_words_of_norms",
                "LimitExceeded(ScratchWords)",
                &[&zero[..], &[0, 0, 0]].concat(),
            ),
        ),
    ]
}

fn rans_shapes() -> Vec<Case> {
    vec![
        level("rans_shape_missing", "Truncated{needed:1,actual:0}", RANS_FORM, &section(&[])),
        level("rans_lanes_64", "InvalidField(Lanes)", RANS_FORM, &section(&[SHAPE | 6, 0xff, 0xff])),
        level("rans_lanes_128", "InvalidField(Lanes)", RANS_FORM, &section(&[SHAPE | 7, 0xff, 0xff])),
    ]
}

fn rans_classes() -> Vec<Case> {
    let one_symbol = [(0, 4), (1, 1), (25 - 16, 4), (0, 12)];
    let two_tables = fields(&[one_symbol, one_symbol].concat());
    vec![
        level(
            "rans_classes_missing",
            "Truncated{needed:1,actual:0}",
            RANS_FORM,
            &section(&[SHAPE | CLASSES]),
        ),
        level("rans_class_alone", "InvalidField(Classes)", RANS_FORM, &section(&[SHAPE | CLASSES, 0x10, 0])),
        level(
            "rans_classes_have_classes",
            "InvalidField(Classes)",
            RANS_FORM,
            &section(&two_classes(&section(&two_classes(&rans(&[], &[]), &[])), &[])),
        ),
        level(
            "rans_classes_lanes_64",
            "InvalidField(Lanes)",
            RANS_FORM,
            &section(&two_classes(&section(&[SHAPE | 6]), &[])),
        ),
        level(
            "rans_classes_beyond_section",
            "Truncated{needed:9,actual:1}",
            RANS_FORM,
            &section(&two_classes(&[9, SHAPE], &[])),
        ),
        level(
            "rans_classes_table_empty",
            "InvalidField(Table)",
            RANS_FORM,
            &section(&two_classes(&rans(&[], &[]), &one_symbol_table())),
        ),
        level(
            "rans_second_table_missing",
            "InvalidField(Table)",
            RANS_FORM,
            &section(&two_classes(&rans(&one_symbol_table(), &[0; 4]), &one_symbol_table())),
        ),
        limited(
            "scratch_words:8192",
            level(
                "limit_scratch_words_of_classes",
                "LimitExceeded(ScratchWords)",
                RANS_FORM,
                &section(&two_classes(
                    &rans(&one_symbol_table(), &[0; 4]),
                    &[&two_tables[..], &[0; 4]].concat(),
                )),
            ),
        ),
    ]
}

fn rans_tables() -> Vec<Case> {
    vec![
        level("rans_table_empty", "InvalidField(Table)", RANS_FORM, &rans(&[], &[])),
        level("rans_table_cut", "InvalidField(Table)", RANS_FORM, &rans(&one_symbol_table()[..2], &[])),
        level(
            "rans_table_above_total",
            "InvalidField(Table)",
            RANS_FORM,
            &rans(&fields(&[(0, 4), (1, 1), (9, 4), (1, 12)]), &[0; 8]),
        ),
        level(
            "rans_table_beyond_alphabet",
            "InvalidField(Table)",
            RANS_FORM,
            &rans(&fields(&[(0, 1), (1, 1), (0, 1), (0, 2), (1, 1), (0, 2)]), &[0; 8]),
        ),
        level(
            "rans_table_class_14",
            "InvalidField(Table)",
            RANS_FORM,
            &rans(&fields(&[(0, 4), (1, 1), (27 - 16, 4), (0, 16)]), &[0; 8]),
        ),
        level(
            "rans_table_padding",
            "TrailingBytes",
            RANS_FORM,
            &rans(&fields(&[(0, 4), (1, 1), (25 - 16, 4), (0, 12), (1, 1)]), &[0; 8]),
        ),
    ]
}

fn rans_streams() -> Vec<Case> {
    let body = levels_body;
    vec![
        limited(
            "scratch_words:4095",
            level(
                "limit_scratch_words",
                "LimitExceeded(ScratchWords)",
                RANS_FORM,
                &rans(&one_symbol_table(), &[0; 4]),
            ),
        ),
        level(
            "rans_stream_cut",
            "Truncated{needed:4,actual:3}",
            RANS_FORM,
            &rans(&one_symbol_table(), &[0; 3]),
        ),
        case("rans_left_over_without_levels", "TrailingBytes", 5, {
            body(&[&[RANS_FORM, 0, 5, 0, 0, 0, 0][..], &rans(&one_symbol_table(), &[0])].concat())
        }),
        case("rans_block_beyond_section", "Truncated{needed:100,actual:8}", (1 << 18) + 1, {
            let len = (1 << 18) + 1;
            let packed = rans(&one_symbol_table(), &[&[100][..], &[0; 8]].concat());
            let body = [&[RANS_FORM, 0][..], &varint(len as u64), &floats(&[1.0]), &packed].concat();
            whole(QSGD, len, LEVELS, &body)
        }),
    ]
}

fn signs() -> Vec<Case> {
    let body = |scale: f32, rest: &[u8]| whole(EFSIGN, 4, SIGNS, &[&floats(&[scale]), rest].concat());
    vec![
        case("signs_scale_cut", "Truncated{needed:4,actual:3}", 4, whole(EFSIGN, 4, SIGNS, &[0; 3])),
        case("signs_cut", "Truncated{needed:1,actual:0}", 4, body(1.0, &[])),
        case("signs_behind_zero", "TrailingBytes", 4, body(0.0, &[0])),
        case("signs_padding", "TrailingBytes", 4, body(1.0, &[0x10])),
        case("signs_negative_scale", "InvalidField(Scale)", 4, body(-1.0, &[0])),
        case("signs_negative_zero", "InvalidField(Scale)", 4, body(-0.0, &[])),
        case("signs_infinite", "NonFiniteValue", 4, body(f32::INFINITY, &[0])),
        case("signs_of_topk", "InvalidField(Kind)", 4, whole(TOPK, 4, SIGNS, &floats(&[0.0]))),
    ]
}

fn seeded() -> Vec<Case> {
    let body = |rest: &[u8]| whole(RANDOMK, 4, SEEDED, &[&[7; 8], rest].concat());
    vec![
        case("seed_cut", "Truncated{needed:8,actual:7}", 4, whole(RANDOMK, 4, SEEDED, &[7; 7])),
        case("seeded_entries_more_than_coordinates", "InvalidField(Entries)", 4, body(&[5, 0])),
        case("seeded_codebook", "InvalidField(Coding)", 4, body(&[1, 3, 0, 0, 0, 0])),
        case("seeded_planes", "InvalidField(Coding)", 4, body(&[1, 4, 23, 0, 0, 0])),
        case("seeded_format_9", "InvalidField(Coding)", 4, body(&[1, 9, 0, 0, 0, 0])),
        case("seeded_run_codebook", "InvalidField(Coding)", 4, body(&[1, 0x13, 0, 0, 0, 0])),
        case("seeded_drawing_15", "InvalidField(Coding)", 4, body(&[1, 0xf0, 0, 0, 0, 0])),
        case("seeded_run_cut", "Truncated{needed:8,actual:4}", 4, body(&[2, 0x10, 0, 0, 0, 0])),
        case("seeded_tile_cut", "Truncated{needed:1,actual:0}", 4, body(&[0, 0x20, 4])),
        case("seeded_tile_without_columns", "InvalidField(Tile)", 4, body(&[0, 0x20, 0, 0])),
        case("seeded_tile_of_more_columns_than_coordinates", "InvalidField(Tile)", 4, body(&[0, 0x20, 8, 1])),
        case("seeded_tile_of_cut_rows", "InvalidField(Tile)", 4, body(&[0, 0x20, 3, 1])),
        case("seeded_tile_without_width", "InvalidField(Tile)", 4, body(&[0, 0x20, 2, 0])),
        case("seeded_tile_wider_than_rows", "InvalidField(Tile)", 4, body(&[0, 0x20, 2, 3])),
        case(
            "seeded_tile_of_too_many_entries",
            "InvalidField(Tile)",
            4,
            body(&[&[3, 0x20, 2, 1][..], &[0; 12]].concat()),
        ),
        case(
            "seeded_tile_of_nothing",
            "InvalidField(Tile)",
            0,
            whole(RANDOMK, 0, SEEDED, &[7, 7, 7, 7, 7, 7, 7, 7, 0, 0x20, 1, 1]),
        ),
        case("seeded_values_cut", "Truncated{needed:8,actual:4}", 4, body(&[2, 0, 0, 0, 0, 0])),
        case("seeded_nan", "NonFiniteValue", 4, body(&[&[1, 0][..], &floats(&[f32::NAN])].concat())),
        limited(
            "entries:1",
            case(
                "limit_entries_of_seeded",
                "LimitExceeded(Entries)",
                4,
                body(&[2, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            ),
        ),
    ]
}

/// Numbers that FORMAT.md, section 15, reserves for tests of refusal, where no frame above has one.
fn unassigned() -> Vec<Case> {
    vec![
        level("packing_5", "InvalidField(Packing)", 0x52, &[0; 9]),
        case(
            "norm_coding_3",
            "InvalidField(Norm)",
            5,
            whole(QSGD, 5, LEVELS, &[2, 0x30, 5, 0, 0, 0, 0, 0, 0]),
        ),
    ]
}

/// Void frames over four elements for coordinate 2 of step 0, spoiled; the first is as it should be, but no
/// frame of a gradient.
fn voids() -> Vec<Case> {
    let good = || void::encode(TOPK, 0, 2, fingerprint(&[vec![4]]));
    let spoiled = |spoil: fn(&mut Vec<u8>)| {
        let mut frame = good();
        spoil(&mut frame);
        let body_bytes = frame.len() - header::HEADER_BYTES;
        frame[16..20].copy_from_slice(&(body_bytes as u32).to_le_bytes());
        header::patch_checksum(&mut frame);
        frame
    };
    let read = |case: Case| Case { words: format!("{} reader=void", case.words), ..case };
    let mut flipped = good();
    flipped[25] ^= 1;
    vec![
        case("void", "Void", 4, good()),
        case("void_with_senders", "UnknownFlag(5)", 4, spoiled(|frame| frame[4] = 5)),
        case("void_with_a_unit", "InvalidField(UnitCount)", 4, spoiled(|frame| frame[6] = 1)),
        read(case("void_of_another_layout", "LayoutMismatch", 5, good())),
        read(case("void_checksum", "ChecksumMismatch", 4, flipped)),
        read(case(
            "void_step_missing",
            "Truncated{needed:1,actual:0}",
            4,
            spoiled(|frame| frame.truncate(24)),
        )),
        read(case(
            "void_index_missing",
            "Truncated{needed:1,actual:0}",
            4,
            spoiled(|frame| frame.truncate(25)),
        )),
        read(case("void_index_superfluous_byte", "InvalidField(Varint)", 4, {
            spoiled(|frame| frame.splice(25.., [0x82, 0]).for_each(drop))
        })),
        read(case("void_index_beyond_layout", "IndexOutOfRange", 4, spoiled(|frame| frame[25] = 4))),
        read(case("void_index_largest", "IndexOutOfRange", 4, {
            spoiled(|frame| frame.splice(25.., varint(u64::MAX)).for_each(drop))
        })),
        read(case("void_left_over", "TrailingBytes", 4, spoiled(|frame| frame.push(0)))),
        read(case("void_cut", "Truncated{needed:4,actual:3}", 4, good()[..23].to_vec())),
    ]
}

/// A saved memory for a layout of two elements, its checksum made right after `spoil`.
fn memory(
    name: &'static str,
    error: &'static str,
    values: [f32; 2],
    spoil: impl FnOnce(&mut Vec<u8>),
) -> Case {
    let mut bytes =
        [&b"GM\x01\x01"[..], &fingerprint(&[vec![2]]).to_le_bytes(), &2u64.to_le_bytes(), &floats(&values)]
            .concat();
    spoil(&mut bytes);
    bytes.extend(gradwire_tests::naive::checksum::crc32c(&bytes).to_le_bytes());
    Case { words: " layout=2 reader=memory".to_owned(), ..case(name, error, 2, bytes) }
}

/// A saved memory of two elements with momentum and one unit state.
fn full_memory(name: &'static str, error: &'static str, spoil: impl FnOnce(&mut Vec<u8>)) -> Case {
    let with_parts = |bytes: &mut Vec<u8>| {
        bytes[3] = 7;
        bytes.splice(20..20, 1u32.to_le_bytes());
        bytes.extend(floats(&[0.5, 4.0]));
        bytes.extend([1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0]);
        spoil(bytes);
    };
    let case = memory(name, error, [1.0, -2.0], with_parts);
    Case { words: " layout=2 reader=full-memory".to_owned(), ..case }
}

/// A saved memory of two elements with two factors.
fn factor_memory(name: &'static str, error: &'static str, spoil: impl FnOnce(&mut Vec<u8>)) -> Case {
    let with_factors = |bytes: &mut Vec<u8>| {
        bytes[3] = 9;
        bytes.splice(20..20, 2u64.to_le_bytes());
        bytes.extend(floats(&[0.5, 4.0]));
        spoil(bytes);
    };
    let case = memory(name, error, [1.0, -2.0], with_factors);
    Case { words: " layout=2 reader=factor-memory".to_owned(), ..case }
}

fn memories() -> Vec<Case> {
    let cut = |case: Case, len: usize| Case { bytes: case.bytes[..len].to_vec(), ..case };
    let fine = [1.0, -2.0];
    let mut flipped = memory("memory_checksum", "ChecksumMismatch", fine, |_| ());
    flipped.bytes[20] ^= 1;
    let mut longer = memory("memory_left_over", "TrailingBytes", fine, |_| ());
    longer.bytes.push(0);
    vec![
        memory("memory_magic", "BadMagic", fine, |bytes| bytes[1] = b'W'),
        memory("memory_version_2", "UnsupportedVersion(2)", fine, |bytes| bytes[2] = 2),
        memory("memory_kind_2", "InvalidField(Memory)", fine, |bytes| bytes[3] = 2),
        memory("memory_of_another_layout", "LayoutMismatch", fine, |bytes| bytes[4] ^= 1),
        memory("memory_of_another_length", "InvalidField(Memory)", fine, |bytes| bytes[12] = 3),
        memory("memory_nan", "NonFiniteValue", [1.0, f32::NAN], |_| ()),
        memory("memory_infinite", "NonFiniteValue", [f32::INFINITY, 1.0], |_| ()),
        cut(memory("memory_cut", "Truncated{needed:8,actual:7}", fine, |_| ()), 27),
        cut(memory("memory_without_checksum", "Truncated{needed:4,actual:0}", fine, |_| ()), 28),
        flipped,
        longer,
        full_memory("memory_kind_31", "InvalidField(Memory)", |bytes| bytes[3] = 31),
        full_memory("memory_without_residual", "InvalidField(Memory)", |bytes| bytes[3] = 6),
        full_memory("memory_of_no_states", "InvalidField(Memory)", |bytes| bytes[20] = 0),
        full_memory("memory_momentum_infinite", "NonFiniteValue", |bytes| {
            bytes[32..36].copy_from_slice(&f32::INFINITY.to_le_bytes());
        }),
        cut(full_memory("memory_momentum_cut", "Truncated{needed:8,actual:7}", |_| ()), 39),
        cut(full_memory("memory_states_cut", "Truncated{needed:16,actual:15}", |_| ()), 55),
        factor_memory("memory_of_no_factors", "InvalidField(Memory)", |bytes| bytes[20] = 0),
        factor_memory("memory_factors_infinite", "NonFiniteValue", |bytes| {
            bytes[40..44].copy_from_slice(&f32::NEG_INFINITY.to_le_bytes());
        }),
        cut(factor_memory("memory_factors_cut", "Truncated{needed:8,actual:7}", |_| ()), 43),
    ]
}
