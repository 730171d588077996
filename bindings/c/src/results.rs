//! Every result of a call: its number, its name and its text.

use core::ffi::{CStr, c_char};

/// What a call returns: GW_OK, or the number of an error. A number never changes its meaning, and is
/// never used for another. 1 to 99: from encoding; 101 to 199: from reading bytes; 201 to 299: from this
/// interface; 301 to 399: from an exchange. gw_result_name and gw_result_text put it into words.
pub type gw_result = u32;

/// Success.
pub const GW_OK: gw_result = 0;
/// The buffer is too short; the call says how many bytes it needs.
pub const GW_ENCODE_BUFFER_TOO_SMALL: gw_result = 1;
/// No memory, or one that lacks momentum, the state of a unit or factors, which this codec needs.
pub const GW_ENCODE_MEMORY_INCOMPLETE: gw_result = 2;
/// This codec takes no memory: what it sends and keeps would not add up.
pub const GW_ENCODE_MEMORY_REFUSED: gw_result = 3;
/// This codec has no frames: its payloads are sums of all workers, or go between neighbours.
pub const GW_ENCODE_NO_FRAMES: gw_result = 4;
/// What this codec sends cannot be cut into packets.
pub const GW_ENCODE_NO_PACKETS: gw_result = 5;
/// Packets of this size have no room for a part of these units.
pub const GW_ENCODE_PACKET_TOO_SMALL: gw_result = 6;
/// A value of the gradient, or of residual + gradient, is NaN or infinite.
pub const GW_ENCODE_NON_FINITE_INPUT: gw_result = 7;
/// The encoder's memory is too small for this density.
pub const GW_ENCODE_SCRATCH_TOO_SMALL: gw_result = 8;
/// The working memory of a linear codec's unit is too small.
pub const GW_ENCODE_LINEAR_SCRATCH_TOO_SMALL: gw_result = 9;
/// The codec needs a part that this build leaves out.
pub const GW_ENCODE_NOT_BUILT: gw_result = 10;
/// A unit, a message or a count does not fit the wire format.
pub const GW_ENCODE_TOO_LARGE: gw_result = 11;
/// The units are not ascending, overlap or reach beyond the layout.
pub const GW_ENCODE_UNIT_OUT_OF_ORDER: gw_result = 12;
/// A value is finite but too large for the narrow format that it is sent in.
pub const GW_ENCODE_VALUE_OVERFLOW: gw_result = 13;
/// A codec of another crate refuses the values.
pub const GW_ENCODE_EXPERIMENT: gw_result = 14;
/// The bytes are not a frame of gradwire: another magic number.
pub const GW_DECODE_BAD_MAGIC: gw_result = 101;
/// The checksum in the header differs from that of the bytes.
pub const GW_DECODE_CHECKSUM_MISMATCH: gw_result = 102;
/// A field has a value that FORMAT.md does not allow.
pub const GW_DECODE_INVALID_FIELD: gw_result = 103;
/// An index is not inside its unit, or not above the one before it.
pub const GW_DECODE_INDEX_OUT_OF_RANGE: gw_result = 104;
/// The positions cannot be read without the shapes of the layout.
pub const GW_DECODE_LAYOUT_UNKNOWN: gw_result = 105;
/// The frame was made for another layout.
pub const GW_DECODE_LAYOUT_MISMATCH: gw_result = 106;
/// The frame asks for more than the limits allow.
pub const GW_DECODE_LIMIT_EXCEEDED: gw_result = 107;
/// A value of the frame is NaN or infinite.
pub const GW_DECODE_NON_FINITE_VALUE: gw_result = 108;
/// The frame needs a part that this build leaves out.
pub const GW_DECODE_NOT_BUILT: gw_result = 109;
/// The memory of the frame's object is too small for these bytes.
pub const GW_DECODE_SCRATCH_TOO_SMALL: gw_result = 110;
/// Bytes are left over after the frame or a section, or padding bits are not zero.
pub const GW_DECODE_TRAILING_BYTES: gw_result = 111;
/// The bytes end before the frame does.
pub const GW_DECODE_TRUNCATED: gw_result = 112;
/// The frame names a codec that this version does not know.
pub const GW_DECODE_UNKNOWN_CODEC: gw_result = 113;
/// A flag or a reserved bit is set that this version does not know.
pub const GW_DECODE_UNKNOWN_FLAG: gw_result = 114;
/// A unit reaches beyond the layout.
pub const GW_DECODE_UNIT_OUT_OF_RANGE: gw_result = 115;
/// The frame has a version of the format that this library does not read.
pub const GW_DECODE_UNSUPPORTED_VERSION: gw_result = 116;
/// A codec of another crate refuses the body of a unit.
pub const GW_DECODE_EXPERIMENT: gw_result = 117;
/// A void frame: its sender has no gradient in this step.
pub const GW_DECODE_VOID: gw_result = 118;
/// A pointer is null where none may be.
pub const GW_ERROR_NULL_POINTER: gw_result = 201;
/// A pointer is not aligned for what it points to.
pub const GW_ERROR_MISALIGNED: gw_result = 202;
/// A fault of the library. Only free the objects of this call; please report it.
pub const GW_ERROR_PANIC: gw_result = 203;
/// An array has another length than the layout, or more bytes than can be addressed.
pub const GW_ERROR_WRONG_LENGTH: gw_result = 204;
/// The spelling of the codec is wrong; gw_codec_explain says where.
pub const GW_ERROR_SPELLING: gw_result = 205;
/// The tensors have more elements than can be addressed.
pub const GW_ERROR_LAYOUT: gw_result = 206;
/// The memory for an object is smaller than its size function says.
pub const GW_ERROR_OBJECT_TOO_SMALL: gw_result = 207;
/// The pointer is not to an object of this kind: not made yet, freed, or of another kind.
pub const GW_ERROR_NOT_AN_OBJECT: gw_result = 208;
/// The object was made for another layout.
pub const GW_ERROR_WRONG_LAYOUT: gw_result = 209;
/// A number is outside the range that the description states.
pub const GW_ERROR_OUT_OF_RANGE: gw_result = 210;
/// This codec keeps nothing, so it has no memory: pass NULL for it.
pub const GW_ERROR_NOTHING_KEPT: gw_result = 211;
/// The object lies in the caller's memory, so there is nothing to free.
pub const GW_ERROR_NOT_ALLOCATED: gw_result = 212;
/// The system has no memory left.
pub const GW_ERROR_NO_HEAP: gw_result = 213;
/// Two buffers overlap that may not.
pub const GW_ERROR_OVERLAP: gw_result = 214;
/// The last encode did not fail at a coordinate.
pub const GW_ERROR_NO_SUCH_ERROR: gw_result = 215;
/// A text is not UTF-8.
pub const GW_ERROR_NOT_UTF8: gw_result = 216;
/// The codec has no such parameter.
pub const GW_ERROR_NOT_SUPPORTED: gw_result = 217;
/// The frame is not void.
pub const GW_ERROR_NOT_VOID: gw_result = 218;
/// No round has begun, or none is left.
pub const GW_ERROR_NO_ROUND: gw_result = 219;
/// The codec's payloads cannot be summed, so this route does not take it.
pub const GW_EXCHANGE_NOT_LINEAR: gw_result = 301;
/// The codec has rounds of sums and no frames, so only routes of sums take it.
pub const GW_EXCHANGE_NO_FRAMES: gw_result = 302;
/// The codec has rounds before its frame: only all-gather takes it.
pub const GW_EXCHANGE_ROUNDS_FIRST: gw_result = 303;
/// A codec for the way back of the mean, on a route without a server.
pub const GW_EXCHANGE_NO_DOWNLINK: gw_result = 304;
/// There are more ranks than the codec's payloads can sum.
pub const GW_EXCHANGE_TOO_MANY_WORKERS: gw_result = 305;
/// The codec sends every coordinate: the sparse route would gain nothing.
pub const GW_EXCHANGE_NOT_SPARSE: gw_result = 306;
/// A mean over senders does not exist here.
pub const GW_EXCHANGE_NO_SENDERS: gw_result = 307;
/// The codec keeps other things in the memory than the one before it.
pub const GW_EXCHANGE_OTHER_MEMORY: gw_result = 308;
/// The codec cannot follow the one before it.
pub const GW_EXCHANGE_CONFLICT: gw_result = 309;
/// A step is one message on this route.
pub const GW_EXCHANGE_ONE_MESSAGE: gw_result = 310;
/// Packets need a server that says which of them arrived.
pub const GW_EXCHANGE_PACKETS: gw_result = 311;
/// The norm cap is not a finite multiple of at least 1.
pub const GW_EXCHANGE_NORM_CAP: gw_result = 312;
/// A norm cap does not go with packets.
pub const GW_EXCHANGE_CAPPED_PACKETS: gw_result = 313;
/// The codec works between two neighbours and makes no mean over all.
pub const GW_EXCHANGE_GOSSIP: gw_result = 314;
/// The codec makes a mean over all ranks, not between two neighbours.
pub const GW_EXCHANGE_NOT_GOSSIP: gw_result = 315;
/// The step before this one is not over.
pub const GW_EXCHANGE_BUSY: gw_result = 316;
/// No step has begun, or the call before this one is not done.
pub const GW_EXCHANGE_NOT_STARTED: gw_result = 317;
/// The server could not encode the mean.
pub const GW_EXCHANGE_DOWNLINK: gw_result = 318;
/// The frame of a rank belongs to another step.
pub const GW_EXCHANGE_WRONG_STEP: gw_result = 319;
/// The frame of a rank has another codec, other units or another divisor.
pub const GW_EXCHANGE_WRONG_UNITS: gw_result = 320;
/// The mean is not finite.
pub const GW_EXCHANGE_NON_FINITE_MEAN: gw_result = 321;
/// The step is void: a rank reported that its gradient cannot be encoded.
pub const GW_EXCHANGE_VOID: gw_result = 322;
/// The payload of a rank is not finite.
pub const GW_EXCHANGE_NON_FINITE_PAYLOAD: gw_result = 323;
/// A rank refused a part of its coordinates, so there is no sum of them.
pub const GW_EXCHANGE_NO_SUM: gw_result = 324;
/// The step failed at a rank, and so at all of them.
pub const GW_EXCHANGE_NOT_AGREED: gw_result = 325;
/// A rank did not say how the step ended; here it is undone. Fetch the parameters anew.
pub const GW_EXCHANGE_UNDECIDED: gw_result = 326;
/// Too few frames reached the server in time.
pub const GW_EXCHANGE_NO_QUORUM: gw_result = 327;
/// The answer of the server makes no sense.
pub const GW_EXCHANGE_BAD_VERDICT: gw_result = 328;
/// Parts cannot be added one by one on this route.
pub const GW_EXCHANGE_NO_PARTS: gw_result = 329;
/// A part cannot be added.
pub const GW_EXCHANGE_BAD_PART: gw_result = 330;
/// A rank runs another version of the exchange.
pub const GW_EXCHANGE_OTHER_VERSION: gw_result = 331;
/// The program at a rank has said that it fails.
pub const GW_EXCHANGE_FAILED: gw_result = 332;
/// A message did not arrive in time.
pub const GW_EXCHANGE_TIMEOUT: gw_result = 351;
/// A message did not leave in time.
pub const GW_EXCHANGE_NO_ROOM: gw_result = 352;
/// A rank is gone.
pub const GW_EXCHANGE_DISCONNECTED: gw_result = 353;
/// The network has failed.
pub const GW_EXCHANGE_TRANSPORT: gw_result = 354;
/// The sender is not a member, or is this rank itself.
pub const GW_EXCHANGE_STRANGER: gw_result = 371;
/// The message belongs to another epoch.
pub const GW_EXCHANGE_OTHER_EPOCH: gw_result = 372;
/// The same sender has sent this tag before.
pub const GW_EXCHANGE_DUPLICATE: gw_result = 373;
/// The message belongs to a step that is over.
pub const GW_EXCHANGE_STALE: gw_result = 374;
/// Nobody has asked for the message yet, and its sender has sent too much ahead; hand it in later.
pub const GW_EXCHANGE_FULL: gw_result = 375;

/// Every result: its number, its name, and the text above it. Made by `build.rs`.
static ALL: &[(gw_result, &CStr, &CStr)] = include!(concat!(env!("OUT_DIR"), "/results.rs"));

/// The name of a result, as this header spells it; "unknown" for a number without a name. The text is
/// static.
///
/// Threads: any, at any time.
#[unsafe(no_mangle)]
pub extern "C" fn gw_result_name(result: gw_result) -> *const c_char {
    let found = ALL.iter().find(|(number, ..)| *number == result);
    found.map_or(c"unknown", |(_, name, _)| name).as_ptr()
}

/// What a result means, in a sentence. The text is static.
///
/// Threads: any, at any time.
#[unsafe(no_mangle)]
pub extern "C" fn gw_result_text(result: gw_result) -> *const c_char {
    let found = ALL.iter().find(|(number, ..)| *number == result);
    found.map_or(c"Not a result of this version of libgradwire.", |(.., text)| text).as_ptr()
}

#[cfg(test)]
mod tests {
    use super::{ALL, gw_result};
    use std::collections::BTreeSet;

    /// `BufferTooSmall` as `BUFFER_TOO_SMALL`.
    fn shout(variant: &str) -> String {
        let mut name = String::new();
        for c in variant.chars() {
            if c.is_uppercase() && !name.is_empty() {
                name.push('_');
            }
            name.extend(c.to_uppercase());
        }
        name
    }

    /// The lines `Self::Variant… => number,` of the codec crate and of the transports.
    fn numbered_errors() -> Vec<(gw_result, String)> {
        let source = concat!(
            include_str!("../../../core/src/error.rs"),
            include_str!("../../../transports/src/exchange/error/code.rs")
        );
        let lines = source.lines().filter_map(|line| line.trim().strip_prefix("Self::")?.split_once(" => "));
        let numbered = lines.filter_map(|(variant, number)| {
            let variant = variant.split_once("TransportError::").map_or(variant, |(_, inner)| inner);
            let end = variant.find(|c: char| !c.is_alphanumeric()).unwrap_or(variant.len());
            Some((number.strip_suffix(',')?.parse().ok()?, shout(&variant[..end])))
        });
        numbered.collect()
    }

    /// Both ways: what no error of Rust is has its number from this interface.
    #[test]
    fn every_error_has_its_number_and_name() {
        let named = |(number, variant): (gw_result, String)| {
            let kind = ["ENCODE", "DECODE", "ERROR", "EXCHANGE"][number as usize / 100];
            (number, format!("GW_{kind}_{variant}"))
        };
        let errors: Vec<_> = numbered_errors().into_iter().map(named).collect();
        let listed = ALL.iter().map(|(number, name, _)| (*number, name.to_str().unwrap().to_owned()));
        let is_own = |number: gw_result| matches!(number, 0 | 201..=299);
        let expected: Vec<_> = listed.filter(|(number, _)| !is_own(*number)).collect();
        let sorted = |mut list: Vec<_>| {
            list.sort();
            list
        };
        assert_eq!(sorted(errors), sorted(expected));
    }

    /// What CI compares with the library that was built.
    #[test]
    fn the_listed_interface_has_every_number() {
        let listed = include_str!("../abi.txt").lines().filter(|line| line.starts_with("GW_"));
        let made = ALL.iter().map(|(number, name, _)| format!("{}: {number}", name.to_str().unwrap()));
        assert!(listed.eq(made), "abi.txt has other numbers");
    }

    #[test]
    fn every_constant_is_listed_and_has_a_number_of_its_own() {
        let constants = include_str!("results.rs").matches("\npub const GW_").count();
        let numbers: BTreeSet<_> = ALL.iter().map(|(number, ..)| number).collect();
        assert_eq!((ALL.len(), numbers.len()), (constants, constants), "a number is used twice");
        assert!(ALL.iter().all(|(.., text)| text.to_bytes().ends_with(b".")));
    }
}
