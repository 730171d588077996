//! Messages of a step, out and in.

use super::gw_exchange;
use crate::raw::{Outcome, boundary, give, object, object_mut, slice, slice_mut, text};
use crate::results::{GW_ERROR_OUT_OF_RANGE, GW_ERROR_WRONG_LENGTH, gw_result};
use core::ffi::c_char;
use transports::exchange::Machine;
use transports::{Rank, Tag, TransportError};

/// Bytes of a tag: which message of which step this is. It travels with the message, as it is.
pub const GW_TAG_BYTES: usize = 20;

/// The next message to send: its number, its receiver, its tag of GW_TAG_BYTES and its bytes. `*bytes` is
/// NULL if nothing is queued. The bytes stay where they are until gw_exchange_sent, gw_exchange_no_room or
/// gw_exchange_not_sent is called with the number, or the step is over.
///
/// Errors: GW_ERROR_NULL_POINTER, GW_ERROR_MISALIGNED, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_outgoing(
    exchange: *const gw_exchange,
    number: *mut u64,
    to: *mut u32,
    tag: *mut u8,
    bytes: *mut *const u8,
    byte_count: *mut usize,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let held = object(exchange)?;
        give(bytes, std::ptr::null())?;
        give(byte_count, 0)?;
        let tag = slice_mut(tag, GW_TAG_BYTES)?;
        let Some(next) = held.exchange.outgoing() else { return Ok(()) };
        give(number, next.id)?;
        give(to, next.to.0)?;
        tag.copy_from_slice(&tag_bytes(next.tag));
        give(byte_count, next.bytes.len())?;
        give(bytes, next.bytes.as_ptr())
    })
}

fn tag_bytes(tag: Tag) -> [u8; GW_TAG_BYTES] {
    let mut bytes = [0; GW_TAG_BYTES];
    bytes[..4].copy_from_slice(&tag.epoch.to_le_bytes());
    bytes[4..12].copy_from_slice(&tag.step.to_le_bytes());
    bytes[12..16].copy_from_slice(&tag.unit.to_le_bytes());
    bytes[16..].copy_from_slice(&tag.chunk.to_le_bytes());
    bytes
}

fn tag_of(bytes: &[u8]) -> Outcome<Tag> {
    let number = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
    let read = || {
        let step = u64::from(number(4)?) | u64::from(number(8)?) << 32;
        Some(Tag { epoch: number(0)?, step, unit: number(12)?, chunk: number(16)? })
    };
    read().ok_or(GW_ERROR_WRONG_LENGTH)
}

/// The message of that number has left.
///
/// Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_sent(exchange: *mut gw_exchange, number: u64) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        object_mut(exchange)?.exchange.sent(number);
        Ok(())
    })
}

/// There is no room for the message of that number now. Others may leave meanwhile; after
/// gw_exchange_retry it is tried again.
///
/// Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_no_room(exchange: *mut gw_exchange, number: u64, now: u64) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        object_mut(exchange)?.exchange.no_room(number, now);
        Ok(())
    })
}

/// There may be room again for messages that found none.
///
/// Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_retry(exchange: *mut gw_exchange) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        object_mut(exchange)?.exchange.retry();
        Ok(())
    })
}

/// The network can never send the message of that number to `to`. The step fails.
///
/// Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_not_sent(exchange: *mut gw_exchange, number: u64, to: u32) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let error = TransportError::Disconnected { rank: Rank(to) };
        object_mut(exchange)?.exchange.not_sent(number, error);
        Ok(())
    })
}

/// Takes a message that arrived: who sent it, its tag, its bytes. In any order, early ones too; it is
/// copied. The order of arrival never changes the mean.
///
/// Errors: why it is not taken; the step goes on. GW_EXCHANGE_STRANGER, GW_EXCHANGE_OTHER_EPOCH,
/// GW_EXCHANGE_DUPLICATE, GW_EXCHANGE_STALE: drop it. GW_EXCHANGE_FULL: nobody asked for it yet, and its
/// sender has sent too much ahead; hand it in again later. GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_receive(
    exchange: *mut gw_exchange,
    from: u32,
    tag: *const u8,
    bytes: *const u8,
    byte_count: usize,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let machine = &mut object_mut(exchange)?.exchange;
        let (tag, bytes) = (tag_of(slice(tag, GW_TAG_BYTES)?)?, slice(bytes, byte_count)?);
        let mut message = machine.lend();
        message.clear();
        message.extend_from_slice(bytes);
        machine.receive(Rank(from), tag, message).map_err(|refusal| refusal.code())
    })
}

/// Message number `i` of those that the exchange waits for now, counted from 0, the most urgent first: its
/// sender and its tag. For networks that wait for messages by name; any other message may be handed in too.
/// With `*count` above 1, so many messages are meant, whose tags differ in the last four bytes only: they
/// count up from there, little-endian.
///
/// Errors: GW_ERROR_OUT_OF_RANGE for a number from which on nothing is waited for, GW_ERROR_NULL_POINTER,
/// GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_wanted(
    exchange: *mut gw_exchange,
    i: usize,
    from: *mut u32,
    tag: *mut u8,
    count: *mut u32,
) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        let wanted = object_mut(exchange)?.exchange.wanted();
        let wanted = wanted.get(i).ok_or(GW_ERROR_OUT_OF_RANGE)?;
        let tag = slice_mut(tag, GW_TAG_BYTES)?;
        give(from, wanted.from.0)?;
        tag.copy_from_slice(&tag_bytes(wanted.tag));
        give(count, wanted.chunks)
    })
}

/// When to call again, even if nothing arrives.
///
/// Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_deadline(exchange: *const gw_exchange, time: *mut u64) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe { give(time, object(exchange)?.exchange.deadline()) })
}

/// Nothing more comes from a rank. Its messages that arrived still count.
///
/// Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_peer_lost(exchange: *mut gw_exchange, rank: u32) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        object_mut(exchange)?.exchange.peer_lost(Rank(rank));
        Ok(())
    })
}

/// Of a network that waits by name: none of the messages that gw_exchange_wanted named last comes from that
/// rank any more. Other messages of it may have arrived.
///
/// Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_not_here(exchange: *mut gw_exchange, rank: u32) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        object_mut(exchange)?.exchange.not_here(Rank(rank));
        Ok(())
    })
}

/// The network has failed: so does the step.
///
/// Errors: GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_network_failed(exchange: *mut gw_exchange) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        object_mut(exchange)?.exchange.network_failed(TransportError::Closed);
        Ok(())
    })
}

/// The program has failed in code of its own. Call gw_exchange_complete until it returns
/// GW_EXCHANGE_FAILED: then all other ranks are told, in the same step, with this text, of which 512 bytes
/// travel. Whatever was encoded goes back to the memory. Without a step in progress, and once this rank has
/// voted for its mean, the call does nothing. Where ranks do not vote (`fail_stop`), the others are told up
/// to the point where all is encoded.
///
/// Errors: GW_ERROR_NOT_UTF8, GW_ERROR_NULL_POINTER, GW_ERROR_NOT_AN_OBJECT.
///
/// # Safety
/// As the manual says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gw_exchange_fail(exchange: *mut gw_exchange, why: *const c_char) -> gw_result {
    // SAFETY: the caller's pointers are what the manual says.
    boundary(|| unsafe {
        object_mut(exchange)?.exchange.fail(text(why)?);
        Ok(())
    })
}
