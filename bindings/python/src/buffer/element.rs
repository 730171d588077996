//! Which elements a buffer holds.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::errors::value;

/// The type of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element {
    F32,
    F16,
    Bf16,
    /// 16 bits without a meaning of their own.
    Bits16,
    Byte,
}

impl Element {
    pub(super) fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 | Self::Bits16 => 2,
            Self::Byte => 1,
        }
    }

    /// From the format of the `struct` module; `None` for what no codec takes.
    pub(super) fn from_format(format: &[u8], item_bytes: usize) -> Option<Self> {
        let format = match format {
            [b'@' | b'=', rest @ ..] => rest,
            [b'<', rest @ ..] if cfg!(target_endian = "little") => rest,
            [b'>' | b'!', rest @ ..] if cfg!(target_endian = "big") => rest,
            format => format,
        };
        let element = match format {
            b"f" => Self::F32,
            b"e" => Self::F16,
            b"H" | b"h" => Self::Bits16,
            b"B" | b"b" | b"c" => Self::Byte,
            _ => return None,
        };
        (element.bytes() == item_bytes).then_some(element)
    }

    /// The element as `dtype=` names it.
    pub(super) fn named(self, dtype: Option<&str>) -> PyResult<Self> {
        let wanted = match dtype {
            None => return Ok(self),
            Some("f32" | "float32") => Self::F32,
            Some("f16" | "float16") => Self::F16,
            Some("bf16" | "bfloat16") => Self::Bf16,
            Some(other) => return Err(value(format!("dtype='{other}': expected one of f32 f16 bf16"))),
        };
        let fits = self == wanted
            || self == Self::Byte
            || (self == Self::Bits16 && matches!(wanted, Self::F16 | Self::Bf16));
        if fits {
            Ok(wanted)
        } else {
            let text = format!("expected elements that can be {}, got {}", wanted.name(), self.name());
            Err(PyTypeError::new_err(text))
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::F16 => "float16",
            Self::Bf16 => "bfloat16",
            Self::Bits16 => "16-bit integers",
            Self::Byte => "bytes",
        }
    }
}
