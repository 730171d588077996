//! Versions of the library and of the format.

use codecs::format::VERSIONS;

/// The version of this header. While the major version is 0, a new minor version may change functions.
pub const GW_VERSION_MAJOR: u32 = 0;
/// See GW_VERSION_MAJOR.
pub const GW_VERSION_MINOR: u32 = 1;
/// See GW_VERSION_MAJOR.
pub const GW_VERSION_PATCH: u32 = 0;

/// The version of the library that is linked, to compare with GW_VERSION_NUMBER.
///
/// Threads: any, at any time.
#[unsafe(no_mangle)]
pub extern "C" fn gw_version_number() -> u32 {
    GW_VERSION_MAJOR * 10_000 + GW_VERSION_MINOR * 100 + GW_VERSION_PATCH
}

/// The oldest version of the wire format that this library reads.
///
/// Threads: any, at any time.
#[unsafe(no_mangle)]
pub extern "C" fn gw_format_version_min() -> u32 {
    VERSIONS.first().copied().map_or(0, u32::from)
}

/// The newest version of the wire format that this library reads, and the one that it writes.
///
/// Threads: any, at any time.
#[unsafe(no_mangle)]
pub extern "C" fn gw_format_version_max() -> u32 {
    VERSIONS.last().copied().map_or(0, u32::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_has_the_version_of_the_package() {
        let version = format!("{GW_VERSION_MAJOR}.{GW_VERSION_MINOR}.{GW_VERSION_PATCH}");
        assert_eq!(version, env!("CARGO_PKG_VERSION"));
    }

    #[test]
    fn the_formats_are_those_of_the_codec_crate() {
        assert!(VERSIONS.is_sorted());
        let all: Vec<_> = (gw_format_version_min()..=gw_format_version_max()).collect();
        assert_eq!(all, VERSIONS.iter().map(|&version| u32::from(version)).collect::<Vec<_>>());
    }
}
