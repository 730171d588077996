//! How fast each codec is meant to be, on AVX-512, as a multiple of memcpy.

/// Work and the largest ratio that is good enough, for heavy-tailed, Gaussian and real input.
const TARGETS: &[(&str, f64)] = &[
    ("encode topk:density=0.01", 2.0),
    ("encode topk:density=0.1", 6.0),
    ("encode topk:density=0.001", 1.6),
    ("encode topk:density=0.01,chunk=4096", 4.0),
    ("encode efsign", 4.0),
    ("encode qsgd:bits=4,entropy=fixed", 1.6),
    ("encode qsgd:bits=4,entropy=rans", 6.8),
    ("encode qsgd:bits=4,bucket=4294967295,entropy=fixed,rounding=nearest,memory=none", 1.5),
    ("encode f16", 0.9),
    ("encode bf16", 0.9),
    ("decode topk:density=0.01", 0.3),
    ("decode efsign", 2.0),
    ("decode qsgd:bits=4,entropy=fixed", 1.2),
    ("decode qsgd:bits=4,entropy=rans", 5.5),
    ("16 random bits an element", 0.4),
];

/// The target of a piece of work, if it has one.
#[must_use]
pub fn target(work: &str) -> Option<f64> {
    TARGETS.iter().find(|(name, _)| *name == work).map(|&(_, ratio)| ratio)
}
