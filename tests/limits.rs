//! What a frame from a stranger may ask for: every limit holds to the last unit of what it counts, and
//! nothing is allocated beyond it.

use gradwire::format::{Limit, frame_scratch_len};
use gradwire::{DecodeError, Decoder, Encoder, Grad, LayoutRef, Limits, Source, Spec, StepInput, StepKey};
use gradwire_tests::golden::{self, Golden};
use gradwire_tests::inputs::Input;
use gradwire_tests::naive::{self, header};
use gradwire_tests::run;
use std::alloc::{GlobalAlloc, Layout as Allocation, System};
use std::cell::Cell;

/// Counts what the current thread asks for.
struct Counting;

thread_local! {
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged; counting touches a thread-local integer and
// allocates nothing.
unsafe impl GlobalAlloc for Counting {
    // SAFETY: as the trait says, which the caller keeps to.
    unsafe fn alloc(&self, layout: Allocation) -> *mut u8 {
        ALLOCATED.with(|allocated| allocated.set(allocated.get() + layout.size()));
        // SAFETY: the caller's promise is handed on.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: as the trait says, which the caller keeps to.
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Allocation) {
        // SAFETY: the caller's promise is handed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that `work` allocates.
fn allocated(work: impl FnOnce()) -> usize {
    let before = ALLOCATED.with(Cell::get);
    work();
    ALLOCATED.with(Cell::get) - before
}

fn refused(frame: &[u8], layout: &LayoutRef<'_>, limits: &Limits) -> Option<DecodeError> {
    run::parse(frame, layout, limits, |_| ()).err()
}

/// What a frame asks for, counted by the naive decoder: units, elements, entries.
fn counts(golden: &Golden) -> [usize; 3] {
    let decoded = naive::decode::decode(&golden.frame(), &golden.shapes).unwrap();
    let elements = decoded.units.iter().map(|unit| unit.len).sum();
    let sparse = decoded.units.iter().filter(|unit| unit.kind == 1 || unit.kind == 3);
    [decoded.units.len(), elements, sparse.map(|unit| unit.entries.len()).sum()]
}

#[test]
fn a_frame_that_asks_for_exactly_what_is_allowed_is_accepted_and_one_more_is_not() {
    for golden in golden::all() {
        let (frame, layout) = (golden.frame(), golden.layout());
        let [units, elements, entries] = counts(&golden);
        let words = frame_scratch_len(&frame, &layout.as_ref(), &run::no_limits()).unwrap();
        let exact = Limits {
            max_elements: elements,
            max_body_bytes: frame.len() - header::HEADER_BYTES,
            max_entries: entries,
            max_units: units,
            max_scratch_words: words,
            max_magnitude: f32::MAX,
        };
        assert_eq!(refused(&frame, &layout.as_ref(), &exact), None, "{}", golden.name);
        let less = |value: usize| value.checked_sub(1);
        let tighter = [
            (less(elements).map(|max_elements| Limits { max_elements, ..exact }), Limit::Elements),
            (
                less(exact.max_body_bytes).map(|max_body_bytes| Limits { max_body_bytes, ..exact }),
                Limit::BodyBytes,
            ),
            (less(entries).map(|max_entries| Limits { max_entries, ..exact }), Limit::Entries),
            (less(units).map(|max_units| Limits { max_units, ..exact }), Limit::Units),
            (less(words).map(|max_scratch_words| Limits { max_scratch_words, ..exact }), Limit::ScratchWords),
        ];
        for (limits, limit) in tighter {
            if let Some(limits) = limits {
                let error = refused(&frame, &layout.as_ref(), &limits);
                assert_eq!(error, Some(DecodeError::LimitExceeded(limit)), "{}", golden.name);
            }
        }
    }
}

/// Levels are bounded by their norm; the highest level of a norm may round to one unit in the last place
/// above it.
#[test]
fn no_value_of_an_accepted_frame_is_above_the_largest_magnitude() {
    for golden in golden::all() {
        let (frame, layout) = (golden.frame(), golden.layout());
        let sums = run::decode(&frame, &layout.as_ref()).unwrap();
        let largest = sums.iter().fold(0.0f32, |largest, sum| largest.max(sum.abs()));
        let limits = |max_magnitude| Limits { max_magnitude, ..run::no_limits() };
        if largest > 0.0 {
            let error = refused(&frame, &layout.as_ref(), &limits(largest.next_down().next_down()));
            assert_eq!(error, Some(DecodeError::LimitExceeded(Limit::Magnitude)), "{}", golden.name);
        }
        let may_be_below = ["units", "_q", "stochastic"].iter().any(|word| golden.name.contains(word));
        if !golden.name.starts_with("qsgd") && !may_be_below {
            assert_eq!(refused(&frame, &layout.as_ref(), &limits(largest)), None, "{}", golden.name);
        }
    }
}

#[test]
fn the_limits_of_a_layout_admit_every_honest_frame() {
    for golden in golden::all() {
        let layout = golden.layout();
        let limits = Limits::for_layout(&layout.as_ref());
        assert_eq!(refused(&golden.frame(), &layout.as_ref(), &limits), None, "{}", golden.name);
    }
}

/// The dearest frames that a spelling can ask for: one norm or one seed for every coordinate or tensor.
#[test]
fn the_limits_of_a_layout_admit_the_dearest_frames_of_many_tensors() {
    let many_ones = vec![vec![1]; 9000];
    let many_empty = vec![vec![0]; 9000];
    let mixed: Vec<Vec<usize>> = (0..500).map(|i| vec![i % 7, i % 3]).collect();
    for shapes in [many_ones, many_empty, mixed, vec![vec![3000]], vec![vec![700, 3], vec![3]]] {
        let layout = run::layout(&shapes);
        let layout = layout.as_ref();
        let limits = Limits::for_layout(&layout);
        for spelling in [
            "none",
            "topk:density=1,index=raw,unit=tensor",
            "topk:density=1,index=rice,values=q8,unit=tensor",
            "topk:density=0.5,index=bitmap,unit=tensor,dense_below=2",
            "threshold:value=0,index=rice,unit=tensor",
            "qsgd:bits=8,bucket=1,entropy=elias,unit=tensor",
            "qsgd:bits=8,bucket=1,entropy=rans,unit=tensor",
            "qsgd:bits=8,bucket=1,entropy=adaptive,unit=tensor",
            "qsgd:bits=8,bucket=1,entropy=fixed",
            "randomk:density=1,unit=tensor",
        ] {
            let spec = Spec::parse(spelling).unwrap();
            let units: Vec<_> = spec.units.units(&layout).collect();
            let grad = Input::Normal(3).values(layout.len());
            let key = StepKey { seed: u64::MAX, step: u64::MAX, source: Source::Rank(1) };
            let frame = run::encode(&spec.codec, key, &layout, &units, Grad::F32(&grad), None, 0).unwrap();
            assert_eq!(refused(&frame, &layout, &limits), None, "{spelling} of {} tensors", shapes.len());
        }
    }
}

/// Words that the positions of a unit take beside its entries, by the table of FORMAT.md, section 11.
fn position_words(coder: u8, len: usize) -> usize {
    let c = (len / 2).min(65_536);
    let contexts = (32 + 48) * 16;
    let gaps = 16 + (14 + 14 * 14 + 14 * 14) * (1 + 16 / 2);
    let coordinates = 256 + 512 + 128 + 72;
    match coder {
        3 => contexts + gaps + c.div_ceil(32) + c.div_ceil(1024),
        4 => contexts + coordinates + 2 * c.max(64),
        _ => 0,
    }
}

/// Units of eight entries: the smallest layout whose limits admit a frame is the one that the table says.
#[test]
fn words_of_several_units_of_adaptive_positions_are_their_sum() {
    let mixes: [(&[u8], usize, usize); 6] = [
        (&[3, 3], 864, 9920),
        (&[3, 4, 4], 768, 9728),
        (&[3, 3, 4], 2056, 12_304),
        (&[4, 4, 4, 4], 672, 9536),
        (&[0, 3, 1, 3, 2], 876, 9944),
        (&[3, 3, 3, 3, 4, 4], 8208, 24_608),
    ];
    for (coders, n, words) in mixes {
        let sections = |coder| match coder {
            0 => vec![0b1000_1000, 0b1100_0110, 0b1111_1010],
            1 => vec![0xff],
            2 => vec![3, 7, 0, 0xff],
            _ => vec![1, 8],
        };
        let unit = |&coder: &u8| [&[0, 0, 8, 1, 8, coder][..], &sections(coder), &[0; 32]].concat();
        let body = [&[0][..], &coders.iter().flat_map(unit).collect::<Vec<u8>>()].concat();
        let frame = |n| header::frame(3, coders.len() as u16, header::fingerprint(&[vec![n]]), &body);
        let sum: usize = coders.iter().map(|&coder| 8 + position_words(coder, 8)).sum();
        assert_eq!((sum, n), (words, (words - 8192).div_ceil(2)), "{coders:?}");
        let read = |n| {
            let layout = LayoutRef::flat(n);
            refused(&frame(n), &layout, &Limits::for_layout(&layout))
        };
        assert_eq!(read(n), None, "{coders:?}");
        assert_eq!(read(n - 1), Some(DecodeError::LimitExceeded(Limit::ScratchWords)), "{coders:?}");
        let words = frame_scratch_len(&frame(n), &LayoutRef::flat(n), &run::no_limits());
        assert_eq!(words, Ok(sum), "{coders:?}");
    }
}

/// Columns count up to the widest row, and what values are decoded with has room where positions were.
#[test]
fn words_of_one_unit_are_the_larger_of_those_of_its_positions_and_its_values() {
    let table = [0x10, 0x80, 0x3f, 1, 0x10];
    for len in [1usize, 8, 64, 65, 127, 130, 2047, 2048, 2050, 131_071, 131_072, 1 << 20, u32::MAX as usize] {
        for coder in [0, 2, 3, 4] {
            for (format, values, value_words) in [(0, &[0; 4][..], 0), (3, &table, 4096), (3, &[0; 4], 0)] {
                // One raw position has as many digits as `len` − 1.
                let raw_bytes = (len - 1).checked_ilog2().map_or(0, |log| log as usize / 8 + 1);
                let index = if coder == 0 { &[0; 4][..raw_bytes] } else { &[1, 8] };
                let unit =
                    [&[0, 0, 0][..], &header::varint(len as u64), &[1, 1, format << 4 | coder]].concat();
                let frame = header::frame(3, 1, 42, &[&unit[..], index, values].concat());
                let words = frame_scratch_len(&frame, &LayoutRef::opaque(len, 42), &run::no_limits());
                let expected = 1 + position_words(coder, len).max(value_words);
                assert_eq!(words, Ok(expected), "coder {coder}, format {format}, {len} coordinates");
            }
        }
    }
}

/// Levels take a table for each class and a byte for each segment, norms in planes a word each beside a table
/// that they share.
#[test]
fn words_of_levels_are_those_of_their_tables_segments_and_norms() {
    let words = |len: usize, form: u8, norm: u8, bucket: usize, rest: &[u8]| {
        let unit = [&[0, 0, 0][..], &header::varint(len as u64), &[2, form, norm]].concat();
        let frame = header::frame(5, 1, 42, &[&unit[..], &header::varint(bucket as u64), rest].concat());
        frame_scratch_len(&frame, &LayoutRef::opaque(len, 42), &run::no_limits()).unwrap()
    };
    let table: &[u8] = &[1, 0x10];
    for len in [0usize, 1, 31, 129, 1000] {
        for bucket in [1, 7, 1000] {
            let norms = len.div_ceil(bucket);
            let f32s = vec![0; 4 * norms];
            let planes = [table, &[0]].concat();
            let fixed = vec![0; len.div_ceil(4)];
            let elias: &[u8] = &[0];
            assert_eq!(words(len, 0x02, 0, bucket, &[&f32s[..], &fixed].concat()), 0);
            assert_eq!(words(len, 0x02, 0x10, bucket, &[&planes[..], &fixed].concat()), norms + 4096);
            assert_eq!(words(len, 0x12, 0, bucket, &[&f32s[..], elias].concat()), 0);
            assert_eq!(words(len, 0x12, 0x10, bucket, &[&planes[..], elias].concat()), norms + 4096);
            assert_eq!(words(len, 0x22, 0, bucket, &[&f32s[..], table].concat()), 4096);
            assert_eq!(words(len, 0x22, 0x10, bucket, &[&planes[..], table].concat()), norms + 4096);
            assert_eq!(words(len, 0x42, 0x20, bucket, &[1, 0]), len);
            for (classes, segment_log2) in [(2, 5), (3, 7), (16, 20)] {
                let byte = (segment_log2 - 5) << 4 | (classes - 1);
                let classed = [&[4, 0x90, byte as u8], table].concat();
                let tables = 4096 * classes + len.div_ceil(1 << segment_log2).div_ceil(4);
                assert_eq!(words(len, 0x22, 0, bucket, &[&f32s[..], &classed].concat()), tables);
                assert_eq!(words(len, 0x22, 0x10, bucket, &[&planes[..], &classed].concat()), norms + tables);
            }
        }
    }
}

/// Frames that state as much as their fields can hold, with next to nothing behind it. All are well-formed up
/// to the point where their sections would be decoded.
fn claims(len: usize) -> Vec<(&'static str, Vec<u8>)> {
    let huge = header::varint(len as u64);
    let unit = |codec, kind, body: &[u8]| {
        let body = [&[0, 0, 0][..], &huge, &[kind], body].concat();
        header::frame(codec, 1, 42, &body)
    };
    let table = {
        let mut bits = naive::bits::Bits::default();
        [(0, 4), (1, 1), (25 - 16, 4), (0, 12)].iter().for_each(|&(value, width)| bits.field(value, width));
        bits.bytes()
    };
    let one_symbol = [&[table.len() as u8 + 128, 1][..], &table, &[0; 128]].concat();
    let rans_book = [&[0x10, 0x80, 0x3f][..], &one_symbol].concat();
    let rice_of = |section: &[u8]| [&[section.len() as u8][..], section].concat();
    vec![
        ("dense", unit(0, 0, &[0])),
        ("raw", unit(3, 1, &[&huge[..], &[0x00]].concat())),
        ("bitmap", unit(3, 1, &[&huge[..], &[0x01]].concat())),
        ("rice and f32", unit(3, 1, &[&huge[..], &[0x02], &rice_of(&[7])].concat())),
        (
            "rice and a coded codebook",
            unit(3, 1, &[&huge[..], &[0x32], &rice_of(&[16, 0]), &rans_book].concat()),
        ),
        ("levels", unit(5, 2, &[2, 1])),
        (
            "levels in one bucket",
            unit(5, 2, &[&[0x82][..], &huge, &[0, 0, 0x80, 0x3f], &one_symbol].concat()),
        ),
        ("seeded", unit(6, 3, &[&[7; 8][..], &huge, &[0]].concat())),
        ("one seeded entry", unit(6, 3, &[&[7; 8][..], &[1, 0, 0, 0, 0, 0]].concat())),
        ("many coded units", {
            let one = [&[0, 0, 0, 2, 0x82, 1][..], &[table.len() as u8], &table].concat();
            let body: Vec<u8> =
                std::iter::once(0).chain(one.iter().copied().cycle().take(one.len() * 60_000)).collect();
            header::frame(5, 60_000, 42, &body)
        }),
    ]
}

#[test]
fn frames_that_claim_much_allocate_no_more_than_the_limits_allow() {
    // A layout that does not stand in the way either.
    let len = u32::MAX as usize;
    let layout = LayoutRef::opaque(len, 42);
    let limits = Limits { max_scratch_words: 10_000, ..run::no_limits() };
    for (name, frame) in claims(len) {
        let bytes = allocated(|| {
            let _ = Decoder::new().parse(&frame, &layout, &limits).map(|_| ());
        });
        assert!(
            bytes <= 4 * limits.max_scratch_words,
            "{name}: {bytes} bytes for a frame of {}",
            frame.len()
        );
        for limits in [Limits { max_entries: 1000, ..limits }, Limits { max_elements: 1000, ..limits }] {
            let bytes = allocated(|| {
                let _ = Decoder::new().parse(&frame, &layout, &limits).map(|_| ());
            });
            assert!(bytes <= 4 * limits.max_scratch_words, "{name}: {bytes} bytes");
        }
    }
}

/// A frame of one unit of `len` coordinates, `ones` of which have an entry of value 0, as Rice codes with the
/// parameter 0: a bit for each coordinate up to the last entry. Where nothing is set, memory is not touched
/// but for reading.
#[cfg(all(target_pointer_width = "64", not(miri)))]
fn unary_positions(len: u32, ones: &[u64]) -> Vec<u8> {
    let k = ones.len();
    let parameters = vec![0; (5 * k.div_ceil(128)).div_ceil(8)];
    let high_bytes = ones.last().map_or(0, |last| last / 8 + 1) as usize;
    let section = (1 + parameters.len() + high_bytes) as u64;
    let unit = [&[0, 0, 0][..], &header::varint(len.into()), &[1]].concat();
    let coding =
        [&unit[..], &header::varint(k as u64), &[0x12], &header::varint(section), &[7], &parameters].concat();
    let mut frame = header::frame(3, 1, 42, &coding);
    let highs = frame.len();
    let body_bytes = coding.len() + high_bytes + 2 * k;
    // Not `resize`, which would write what it adds.
    let mut whole = vec![0; header::HEADER_BYTES + body_bytes];
    frame[16..20].copy_from_slice(&(body_bytes as u32).to_le_bytes());
    whole[..highs].copy_from_slice(&frame);
    ones.iter().for_each(|one| whole[highs + (one / 8) as usize] |= 1 << (one % 8));
    whole
}

/// Rice codes whose highs take almost 2³² bits, which a unit of the largest length can have; also such that a
/// reader of 128 entries at a time begins inside a byte.
#[cfg(all(target_pointer_width = "64", not(miri)))]
#[test]
fn rice_codes_of_the_longest_gaps_are_read() {
    let layout = LayoutRef::opaque(u32::MAX as usize, 42);
    let last = u64::from(u32::MAX) - 1;
    let after_128 = |first: u64| (first..first + 128).chain([last]).collect::<Vec<_>>();
    let read = |ones: &[u64]| {
        let mut frame = unary_positions(u32::MAX, ones);
        let result = |frame: &[u8]| {
            run::parse(frame, &layout, &run::no_limits(), |frame| {
                let mut last = None;
                frame.units().for_each(|unit| unit.for_each(|position, _| last = Some(position as u64)));
                last
            })
        };
        // Bit by bit, the checksum of so much takes longer than all the rest.
        if let Err(DecodeError::ChecksumMismatch { computed, .. }) = result(&frame) {
            frame[20..24].copy_from_slice(&computed.to_le_bytes());
        }
        result(&frame)
    };
    assert_eq!(read(&[last]), Ok(Some(last)));
    assert_eq!(read(&after_128(7)), Ok(Some(last)));
    let error = read(&[last + 1]).expect_err("a position beyond the unit");
    assert!(matches!(error, DecodeError::IndexOutOfRange | DecodeError::Truncated { .. }), "{error:?}");
}

/// Entries take at least a bit each in every index coder, and so cannot be more than the section has bits.
#[test]
fn frames_that_claim_more_entries_than_they_have_bits_allocate_nothing_for_them() {
    let len = 1 << 22;
    let layout = LayoutRef::opaque(len, 42);
    let limits = Limits::for_layout(&layout);
    for (name, frame) in claims(len).into_iter().filter(|(name, _)| name.starts_with("rice")) {
        let bytes = allocated(|| assert!(Decoder::new().parse(&frame, &layout, &limits).is_err(), "{name}"));
        assert!(bytes <= 100 * frame.len(), "{name}: {bytes} bytes for a frame of {}", frame.len());
    }
}

#[test]
fn warm_buffers_allocate_nothing_per_step() {
    let n = 5000;
    let layout = LayoutRef::flat(n);
    let limits = Limits::for_layout(&layout);
    for spelling in [
        "none",
        "bf16",
        "topk:values=q4",
        "threshold:value=1",
        "qsgd:bits=4",
        "qsgd:entropy=elias",
        "qsgd:entropy=adaptive",
        "randomk",
    ] {
        let spec = Spec::parse(spelling).unwrap();
        let units: Vec<_> = spec.units.units(&layout).collect();
        let grads: Vec<Vec<f32>> = (0..4).map(|seed| Input::Normal(seed).values(n)).collect();
        let (mut encoder, mut decoder, mut sum) = (Encoder::new(), Decoder::new(), vec![0.0; n]);
        let mut step = |t: u64| {
            let key = StepKey { seed: 1, step: t, source: Source::Rank(0) };
            let grad = Grad::F32(&grads[t as usize % 4]);
            let frame = encoder
                .encode(&spec.codec, &StepInput { key, layout: &layout, units: &units, grad }, None)
                .unwrap();
            decoder.parse(frame, &layout, &limits).unwrap().add_scaled_to(0.5, &mut sum);
        };
        (0..4).for_each(&mut step);
        assert_eq!(allocated(|| (4..12).for_each(&mut step)), 0, "{spelling}");
    }
}

/// Units are the caller's, but an error is promised for those that leave the layout, not an attempt to hold
/// them.
#[test]
fn an_encoder_refuses_units_beyond_the_layout_before_it_allocates_for_them() {
    let unit = gradwire::Unit { id: 7, start: 0, len: 1 << 24, dense: false };
    let spec = Spec::parse("topk").unwrap();
    let key = StepKey { seed: 1, step: 1, source: Source::Rank(0) };
    let bytes = allocated(|| {
        let mut encoder = Encoder::new();
        let input =
            StepInput { key, layout: &LayoutRef::flat(4), units: &[unit], grad: Grad::F32(&[0.0; 4]) };
        let result = encoder.encode(&spec.codec, &input, None);
        assert_eq!(result.err(), Some(gradwire::EncodeError::UnitOutOfOrder { unit: 7 }));
    });
    assert!(bytes < 1 << 16, "{bytes} bytes");
}
