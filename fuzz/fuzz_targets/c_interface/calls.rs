//! One call, which the fuzzer chooses.

use super::world::{LENGTHS, Member, Message, World, check};
use gradwire::registry::CODECS;
use libgradwire::codec::*;
use libgradwire::draws::gw_draw;
use libgradwire::encoder::half::*;
use libgradwire::encoder::packets::*;
use libgradwire::encoder::settings::*;
use libgradwire::encoder::*;
use libgradwire::exchange::messages::*;
use libgradwire::exchange::parts::*;
use libgradwire::exchange::settings::*;
use libgradwire::exchange::*;
use libgradwire::frame::*;
use libgradwire::heap::gw_add;
use libgradwire::heap::objects::*;
use libgradwire::layout::*;
use libgradwire::limits::*;
use libgradwire::memory::*;
use libgradwire::outline::*;
use libgradwire::results::GW_OK;
use libgradwire::rounds::*;
use libgradwire::small::*;
use libgradwire::spelling::*;
use std::ffi::{CString, c_void};
use std::ptr::null_mut;

pub fn one(world: &mut World<'_>) {
    // SAFETY: pointers are null, misaligned, or to as much memory as the call is told; what must stay, stays.
    unsafe {
        match world.byte() % 16 {
            0 | 1 => make_codec(world),
            2 => make_layout(world),
            3 => make_memory(world),
            4 => make_encoder(world),
            5 | 6 => encode(world),
            7 => read(world),
            8 => use_frame(world),
            9 => use_memory(world),
            10 => ask(world),
            11 => make_exchange(world),
            12 => rounds(world),
            13 => parts(world),
            _ => exchange(world),
        }
    }
}

fn spelling(world: &mut World<'_>) -> CString {
    let examples: Vec<_> = CODECS.iter().flat_map(|entry| entry.examples).collect();
    match world.byte() {
        0..16 => CString::new(world.bytes()).unwrap_or_default(),
        16..48 => {
            let spelling = examples[world.below(examples.len())];
            let joint = if spelling.contains(':') { ',' } else { ':' };
            let more =
                ["max_packet_bytes=64", "unit=tensor", "warmup=3", "dense_1d", "memory=ef", "memory=none"];
            CString::new(format!("{spelling}{joint}{}", more[world.below(more.len())])).unwrap_or_default()
        }
        _ => CString::new(*examples[world.below(examples.len())]).unwrap_or_default(),
    }
}

unsafe fn make_codec(world: &mut World<'_>) {
    let mut made = null_mut();
    let (room, size) = world.room(gw_codec_size());
    let result = unsafe {
        match world.byte() % 12 {
            0 | 1 => gw_topk_init(room, size, world.word() >> 2, &raw mut made),
            2 => gw_qsgd_init(room, size, u32::from(world.byte()) % 12, &raw mut made),
            3 => gw_none_init(room, size, &raw mut made),
            4 => gw_codec_init(room, size, spelling(world).as_ptr(), null_mut()),
            5 => gw_codec_init(room, size, std::ptr::null(), &raw mut made),
            6 => gw_codec_new(spelling(world).as_ptr(), &raw mut made),
            _ => gw_codec_init(room, size, spelling(world).as_ptr(), &raw mut made),
        }
    };
    if check(result) == GW_OK {
        world.codecs.push(made);
    }
}

unsafe fn make_layout(world: &mut World<'_>) {
    let mut made = null_mut();
    let (room, size) = world.room(gw_layout_size());
    let elements = LENGTHS[world.below(LENGTHS.len())];
    let result = unsafe {
        match world.byte() % 6 {
            0 => gw_layout_init_opaque(room, size, elements, world.word().into(), &raw mut made),
            1 => gw_layout_new_flat(elements, &raw mut made),
            2 | 3 => {
                // Tensors of the same lengths as the vectors, so that gradients fit.
                let shapes: [(&[usize], &[usize]); 4] = [
                    (&[2, 1], &[20, 2, 24]),
                    (&[1, 2, 1], &[100, 80, 10, 100]),
                    (&[0], &[]),
                    (&[2, 1], &[7, 9, 1]),
                ];
                let (ranks, dims) = shapes[world.below(4)];
                let count = if world.byte() == 0 { dims.len().saturating_sub(1) } else { dims.len() };
                let names = [c"weight".as_ptr(), c"bias".as_ptr(), c"\xff".as_ptr()];
                let names = if world.byte() < 99 { std::ptr::null() } else { names.as_ptr() };
                gw_layout_new(ranks.len(), names, ranks.as_ptr(), dims.as_ptr(), count, &raw mut made)
            }
            _ => gw_layout_init(room, size, elements, &raw mut made),
        }
    };
    if check(result) == GW_OK {
        world.layouts.push(made);
    }
}

unsafe fn make_memory(world: &mut World<'_>) {
    let (codec, layout) = (world.one_of(|world| &world.codecs), world.one_of(|world| &world.layouts));
    let (mut size, mut made) = (0, null_mut());
    let result = unsafe {
        if world.byte() < 99 {
            gw_memory_new(codec, layout, &raw mut made)
        } else {
            check(gw_memory_size(codec, layout, &raw mut size));
            let (room, size) = world.room(size);
            gw_memory_init(room, size, codec, layout, &raw mut made)
        }
    };
    if check(result) == GW_OK {
        world.memories.push(made);
    }
}

unsafe fn make_encoder(world: &mut World<'_>) {
    let (codec, layout) = (world.one_of(|world| &world.codecs), world.one_of(|world| &world.layouts));
    let (mut size, mut made) = (0, null_mut());
    let result = unsafe {
        if world.byte() < 99 {
            gw_encoder_new(codec, layout, &raw mut made)
        } else {
            check(gw_encoder_size(codec, layout, &raw mut size));
            let (room, size) = world.room(size);
            gw_encoder_init(room, size, codec, layout, &raw mut made)
        }
    };
    if check(result) == GW_OK {
        world.encoders.push(made);
    }
}

unsafe extern "C" fn keep_packet(context: *mut c_void, packet: *const u8, bytes: usize) {
    // SAFETY: `encode` passes such a list; the packet is there until this returns.
    unsafe {
        let list = &mut *context.cast::<Vec<Vec<u8>>>();
        list.push(std::slice::from_raw_parts(packet, bytes).to_vec());
    }
}

unsafe fn encode(world: &mut World<'_>) {
    let encoder = world.one_of(|world| &world.encoders);
    let memory = world.one_of(|world| &world.memories);
    let (floats, step) = (world.floats(), world.byte().into());
    let (mut written, mut bound, mut packets) = (0, 0, Vec::new());
    unsafe {
        check(gw_encoder_frame_bound(encoder, &raw mut bound));
        let room = match world.byte() {
            0 => 0,
            1 => bound.saturating_sub(1),
            _ => bound,
        };
        let mut out = vec![0xa5; room.min(1 << 20)];
        let (at, room) = (out.as_mut_ptr(), out.len());
        let (values, count) = (floats.as_ptr(), floats.len());
        let result = match world.byte() % 16 {
            0 => gw_encoder_set_source(encoder, world.word().into(), world.word()),
            1 => gw_encoder_set_density(encoder, f64::from(world.byte()) / 200.0),
            2 => gw_encoder_set_epoch(encoder, world.byte().into()),
            3 => gw_encoder_set_divide_by_senders(encoder, world.byte().into()),
            4 => gw_encoder_error_index(encoder, &raw mut bound),
            5 => gw_encoder_error_text(encoder, at.cast(), room, &raw mut written),
            6 => gw_encode_void(encoder, at, room, &raw mut written),
            7 => gw_encode_f16(encoder, step, values.cast(), count, memory, at, room, &raw mut written),
            8 => gw_encode_bf16(encoder, step, values.cast(), count, memory, at, room, &raw mut written),
            9 => gw_encode(
                encoder,
                step,
                values,
                count,
                memory,
                values.cast_mut().cast(),
                count,
                &raw mut written,
            ),
            10 | 11 => {
                let context = (&raw mut packets).cast();
                let visit: gw_packet_visitor = Some(keep_packet);
                gw_encode_packets(
                    encoder,
                    step,
                    values,
                    count,
                    memory,
                    at,
                    room,
                    visit,
                    context,
                    &raw mut written,
                )
            }
            _ => gw_encode(encoder, step, values, count, memory, at, room, &raw mut written),
        };
        if check(result) == GW_OK {
            // Of packets, `written` is the sum.
            assert!(packets.is_empty() || written == packets.iter().map(Vec::len).sum());
            out.truncate(if packets.is_empty() { written } else { 0 });
            packets.push(out);
            packets.retain(|frame| !frame.is_empty());
            world.frame_bytes.append(&mut packets);
        }
    }
}

unsafe fn read(world: &mut World<'_>) {
    let (layout, limits) = (world.one_of(|world| &world.layouts), world.one_of(|world| &world.limits));
    let (bytes, count) = world.frame();
    let (mut size, mut frame, mut outline, mut number) = (0, null_mut(), null_mut(), 0);
    unsafe {
        check(gw_frame_length(bytes, count, &raw mut number));
        check(gw_frame_size(bytes, count, layout, limits, &raw mut size));
        // Of a layout that is as long as can be, frames may cost as much as its limits say.
        let is_small = size < 1 << 24;
        match world.byte() % 6 {
            0 => {
                let (room, size) = world.room(gw_outline_size());
                if check(gw_outline_init(room, size, bytes, count, limits, &raw mut outline)) == GW_OK {
                    world.outlines.push(outline);
                }
            }
            1 => drop(check(gw_void_read(bytes, count, layout, &raw mut number, &raw mut size))),
            2 if is_small => {
                let mut sum = world.floats();
                check(gw_add(bytes, count, layout, 0.5, sum.as_mut_ptr(), sum.len()));
            }
            3 if is_small => {
                if check(gw_frame_new(bytes, count, layout, limits, &raw mut frame)) == GW_OK {
                    world.frames.push(frame);
                }
            }
            _ => {
                let (room, size) = world.room(size);
                if check(gw_frame_init(room, size, bytes, count, layout, limits, &raw mut frame)) == GW_OK {
                    world.frames.push(frame);
                }
            }
        }
    }
}

unsafe extern "C" fn look(context: *mut c_void, index: usize, value: f32) {
    // SAFETY: `use_frame` passes such a variable.
    let next = unsafe { &mut *context.cast::<usize>() };
    assert!(index >= *next && value.is_finite());
    *next = index + 1;
}

unsafe fn use_frame(world: &mut World<'_>) {
    let (frame, mut sum, mut step, mut next) =
        (world.one_of(|world| &world.frames), world.floats(), 0, 0usize);
    unsafe {
        check(gw_frame_step(frame, &raw mut step));
        check(gw_frame_add(frame, f32::from_bits(world.word()), sum.as_mut_ptr(), sum.len()));
        check(gw_frame_each(frame, Some(look), (&raw mut next).cast()));
        check(gw_frame_each(frame, None, null_mut()));
        check(gw_memory_give_back(world.one_of(|world| &world.memories), frame));
    }
}

unsafe fn use_memory(world: &mut World<'_>) {
    let (memory, other) = (world.one_of(|world| &world.memories), world.one_of(|world| &world.memories));
    let (floats, mut size, mut norm, mut kept) = (world.floats(), 0, 0.0, std::ptr::null());
    unsafe {
        match world.byte() % 8 {
            0 => drop(check(gw_memory_keep(memory, floats.as_ptr(), floats.len()))),
            1 => drop(check(gw_memory_rescale(memory, f32::from_bits(world.word())))),
            2 => drop(check(gw_memory_decay(memory, f32::from(world.byte()) / 200.0))),
            3 => drop(check(gw_memory_remap(other, memory, &raw mut size, null_mut(), &raw mut norm))),
            4 => {
                let (bytes, count) = world.frame();
                check(gw_memory_load(memory, bytes, count));
            }
            5 | 6 => {
                check(gw_memory_save(memory, null_mut(), 0, &raw mut size));
                let mut out = vec![0; size.min(1 << 20)];
                if check(gw_memory_save(memory, out.as_mut_ptr(), out.len(), &raw mut size)) == GW_OK {
                    // Frames that were never sent may have been given back until a sum overflowed.
                    check(gw_memory_norm(memory, &raw mut norm));
                    let loaded = check(gw_memory_load(memory, out.as_ptr(), size));
                    assert!(loaded == GW_OK || !norm.is_finite());
                    world.frame_bytes.push(out);
                }
            }
            _ => drop(check(gw_memory_clear(memory))),
        }
        check(gw_memory_norm(memory, &raw mut norm));
        check(gw_memory_residual(memory, &raw mut kept, &raw mut size));
    }
}

/// Calls that only ask, and limits.
unsafe fn ask(world: &mut World<'_>) {
    let (codec, layout) = (world.one_of(|world| &world.codecs), world.one_of(|world| &world.layouts));
    let (limits, outline) = (world.one_of(|world| &world.limits), world.one_of(|world| &world.outlines));
    let (mut size, mut number, mut real, mut can, mut made) = (0, 0, 0.0, 0, null_mut());
    let mut text = vec![0; world.byte().into()];
    let (at, room, i) = (text.as_mut_ptr(), text.len(), world.number());
    unsafe {
        check(match world.byte() % 24 {
            0 => gw_codec_explain(spelling(world).as_ptr(), at, room, &raw mut size),
            1 => gw_codec_spelling(codec, at, room, &raw mut size),
            2 => gw_codec_capabilities(codec, &raw mut can),
            3 => gw_codec_density(codec, &raw mut real),
            4 => gw_codec_set_density(codec, f64::from(world.byte()) / 200.0),
            5 => gw_layout_elements(layout, &raw mut size),
            6 => gw_layout_fingerprint(layout, &raw mut number),
            7 => gw_outline_step(outline, &raw mut number),
            8 => gw_outline_codec(outline, at, room, null_mut()),
            9 => gw_outline_fingerprint(outline, &raw mut number),
            10 => gw_outline_extent(outline, &raw mut size),
            11 => gw_outline_units(outline, &raw mut size),
            12 => gw_outline_unit(outline, i, &raw mut size, null_mut(), &raw mut size, null_mut()),
            13 => gw_outline_unit_text(outline, i, at, room, &raw mut size),
            14 => gw_limits_set_max_elements(limits, i),
            15 => gw_limits_set_max_body_bytes(limits, i),
            16 => gw_limits_set_max_entries(limits, i),
            17 => gw_limits_set_max_units(limits, i),
            18 => gw_limits_set_max_scratch_words(limits, i),
            19 => gw_limits_set_max_magnitude(limits, f32::from_bits(world.word())),
            20 => gw_draw(number, i as u64, world.word(), world.word(), 0, &raw mut number),
            _ => {
                let (room, size) = world.room(gw_limits_size());
                let result = gw_limits_init(room, size, layout, &raw mut made);
                if result == GW_OK {
                    world.limits.push(made);
                }
                result
            }
        });
    }
}

unsafe fn rounds(world: &mut World<'_>) {
    let (rounds, memory) = (world.one_of(|world| &world.rounds), world.one_of(|world| &world.memories));
    let (mut floats, mut size, mut more, mut payload) = (world.floats(), 0, 0, null_mut());
    unsafe {
        match world.byte() % 10 {
            0 | 1 => {
                let (codec, layout) =
                    (world.one_of(|world| &world.codecs), world.one_of(|world| &world.layouts));
                let mut made = null_mut();
                let workers = [1, 1, 2, 3, 0, 7, u32::MAX][world.below(7)];
                check(gw_rounds_size(codec, layout, workers, &raw mut size));
                let (room, size) = world.room(size);
                let result = match world.byte() {
                    0..99 => gw_rounds_new(codec, layout, workers, &raw mut made),
                    _ => gw_rounds_init(room, size, codec, layout, workers, &raw mut made),
                };
                if check(result) == GW_OK {
                    world.rounds.push(made);
                }
            }
            2 => drop(check(gw_rounds_set_source(rounds, 7, world.word()))),
            3 => drop(check(gw_rounds_units(rounds, &raw mut size))),
            4 | 5 => {
                let (unit, step) = (world.below(4), world.byte().into());
                check(gw_rounds_begin(rounds, unit, step, floats.as_ptr(), floats.len(), memory));
            }
            6 => {
                if check(gw_rounds_payload(rounds, &raw mut more, &raw mut payload, &raw mut size)) == GW_OK {
                    // What a stranger's sum might be.
                    let bytes = if more >= GW_SUM_U8 { size } else { 4 * size };
                    std::ptr::write_bytes(payload.cast::<u8>(), world.byte(), bytes);
                }
            }
            7 => drop(check(gw_rounds_abandon(rounds))),
            _ => {
                check(gw_rounds_advance(rounds, floats.as_mut_ptr(), floats.len(), &raw mut more));
            }
        }
    }
}

unsafe fn make_exchange(world: &mut World<'_>) {
    let (codec, layout) = (world.one_of(|world| &world.codecs), world.one_of(|world| &world.layouts));
    let (downlink, route) = (world.one_of(|world| &world.codecs), u32::from(world.byte()) % 8);
    let (mut exchange, gradient, rank) = (null_mut(), world.floats(), u32::from(world.byte()) % 3);
    let result = unsafe {
        match world.byte() % 6 {
            0 => gw_exchange_new_server(codec, layout, world.byte().into(), downlink, &raw mut exchange),
            1 => gw_exchange_new_pipelined(codec, layout, route, world.number(), &raw mut exchange),
            _ => gw_exchange_new(codec, layout, route, &raw mut exchange),
        }
    };
    if check(result) == GW_OK {
        let mean = vec![0.0; gradient.len()];
        world.members.push(Member { exchange, rank, gradient, mean });
    }
}

unsafe fn exchange(world: &mut World<'_>) {
    let (memory, at) = (world.one_of(|world| &world.memories), world.below(world.members.len()));
    let (choice, value, now) = (world.byte() % 32, u32::from(world.byte()), u64::from(world.byte()));
    let (mut number, mut to, mut bytes, mut count, mut progress) = (0, 0, std::ptr::null(), 0, 0);
    let (mut tag, mut text) = ([0; GW_TAG_BYTES], [0; 40]);
    let early = world.below(world.messages.len());
    let hostile = (choice == 13).then(|| (world.bytes(), world.bytes()));
    let ranks = [value % 4, 0, 1, 2];
    let members = &ranks[(value as usize / 4 % 2)..2 + value as usize % 3];
    let Some(member) = world.members.get_mut(at) else { return };
    let exchange = if choice == 31 { null_mut() } else { member.exchange };
    let (mean, gradient) = (&mut member.mean, &member.gradient);
    unsafe {
        check(match choice {
            0 => gw_exchange_set_density(exchange, f64::from(value) / 200.0),
            1 => gw_exchange_set_epoch(exchange, value.into()),
            2 => gw_exchange_set_quorum(exchange, value as usize % 4),
            3 => gw_exchange_set_patience(exchange, value.into()),
            4 => gw_exchange_peer_lost(exchange, value % 4),
            5 => gw_exchange_not_here(exchange, value % 4),
            6 if value > 200 => gw_exchange_network_failed(exchange),
            6 if value > 150 => gw_exchange_fail(exchange, c"failed".as_ptr()),
            7 => gw_exchange_retry(exchange),
            8 => gw_exchange_no_room(exchange, value.into(), now),
            9 => gw_exchange_not_sent(exchange, value.into(), value % 4),
            10 => gw_exchange_report(exchange, &raw mut count, null_mut(), null_mut()),
            11 => gw_exchange_error_text(exchange, text.as_mut_ptr(), text.len(), &raw mut count),
            12 => gw_exchange_wanted(
                exchange,
                value as usize % 4,
                &raw mut to,
                tag.as_mut_ptr(),
                &raw mut progress,
            ),
            13 => {
                let (name, message) = hostile.unwrap_or_default();
                name.iter().zip(&mut tag).for_each(|(byte, slot)| *slot = *byte);
                gw_exchange_receive(exchange, value % 4, tag.as_ptr(), message.as_ptr(), message.len())
            }
            14..17 => {
                let result = gw_exchange_outgoing(
                    exchange,
                    &raw mut number,
                    &raw mut to,
                    tag.as_mut_ptr(),
                    &raw mut bytes,
                    &raw mut count,
                );
                if !bytes.is_null() {
                    let bytes = std::slice::from_raw_parts(bytes, count).to_vec();
                    world.messages.push(Message { from: member.rank, tag, bytes });
                    check(gw_exchange_sent(exchange, number));
                }
                result
            }
            17..20 => match world.messages.get_mut(early) {
                None => gw_exchange_deadline(exchange, &raw mut number),
                Some(message) => {
                    if let (0, len @ 1..) = (value, message.bytes.len()) {
                        message.bytes[now as usize % len] ^= 1;
                    }
                    let (tag, bytes) = (message.tag.as_ptr(), &message.bytes);
                    gw_exchange_receive(exchange, message.from, tag, bytes.as_ptr(), bytes.len())
                }
            },
            20..23 => gw_exchange_begin(
                exchange,
                member.rank,
                members.as_ptr(),
                members.len(),
                0,
                value & 1,
                5,
                now % 3,
                memory,
                0,
                200,
            ),
            23..27 => gw_exchange_encode(exchange, gradient.as_ptr(), gradient.len(), now, &raw mut progress),
            _ => gw_exchange_complete(exchange, mean.as_mut_ptr(), mean.len(), now, 200, &raw mut progress),
        });
    }
}

/// Calls of a step in parts.
unsafe fn parts(world: &mut World<'_>) {
    let (memory, at) = (world.one_of(|world| &world.memories), world.below(world.members.len()));
    let (choice, value, now) = (world.byte() % 16, usize::from(world.byte()), u64::from(world.byte()));
    let (mut size, mut said, mut progress) = (0, std::ptr::null(), 0);
    // Units in order, or as they come.
    let mut units: Vec<u32> = world.bytes().into_iter().take(5).map(|unit| u32::from(unit) % 5).collect();
    if value < 200 {
        units.sort_unstable();
        units.dedup();
    }
    let lacks = if value % 3 == 0 { &units[..units.len() / 2] } else { &[] };
    let says = vec![7; if value == 255 { GW_MOST_SAID + 1 } else { value % 4 }];
    let Some(member) = world.members.get_mut(at) else { return };
    let (exchange, members) = (member.exchange, [0, 1, 2]);
    let (mean, gradient) = (&mut member.mean, &member.gradient);
    unsafe {
        check(match choice {
            0 => gw_exchange_units(exchange, &raw mut size),
            1 => gw_exchange_unit(exchange, value as u32 % 6, &raw mut size, std::ptr::null_mut()),
            2 => gw_exchange_part(exchange, value % 6, &raw mut progress),
            3 => {
                let result =
                    gw_exchange_said(exchange, value % 6, now as u32 % 4, &raw mut said, &raw mut size);
                if result == GW_OK {
                    drop(std::slice::from_raw_parts(said, size).to_vec());
                }
                result
            }
            4..6 => gw_exchange_begin_in_parts(
                exchange,
                member.rank,
                members.as_ptr(),
                1 + value % 3,
                0,
                value as u32 & 1,
                5,
                now % 3,
                memory,
                0,
                200,
            ),
            6..11 => gw_exchange_add(
                exchange,
                units.as_ptr(),
                units.len(),
                lacks.as_ptr(),
                lacks.len(),
                says.as_ptr(),
                says.len(),
                gradient.as_ptr(),
                gradient.len(),
                now,
                &raw mut size,
            ),
            _ => gw_exchange_advance(exchange, mean.as_mut_ptr(), mean.len(), now, &raw mut progress),
        });
    }
}
