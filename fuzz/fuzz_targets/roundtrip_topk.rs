//! Top-k, thresholds, DGC and SIDCo with any coder, any gradient and any residual, NaN and infinities among
//! them: the bytes of the naive reference and the law of conservation, or an error that changes nothing.
#![no_main]

use gradwire_tests::fuzzed::{conserves, pick, spec};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut data = data;
    let method = pick(
        &mut data,
        &[
            "topk:density=0.01",
            "topk:density=0.3",
            "topk:density=1",
            "threshold:value=0",
            "threshold:value=1",
            "dgc:density=0.1,momentum=0",
            "sidco:density=0.1,fit=exp,stages=2",
            "sidco:density=0.3,fit=gamma,stages=1,cap=exact",
            "sidco:density=0.05,stages=3",
            "redsync:density=0.1,width=0.01",
        ],
    );
    let index = pick(
        &mut data,
        &["auto", "raw", "bitmap", "rice", "context", "context-max", "small", "smallest", "chunks"],
    );
    let values = pick(&mut data, &["f32", "f16", "bf16", "q8", "q4", "q2", "sign"]);
    conserves(&spec(&format!("{method},index={index},values={values}")), data);
});
