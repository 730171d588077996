//! Packets of any gradient, in any order, some lost, some twice, with a stranger's between them: what was
//! taken and what was given back are together what was encoded, bit for bit, and nobody's bytes do harm.
#![no_main]

use gradwire::packets::PacketSize;
use gradwire::{EncodeError, Grad, LayoutRef, Memory, Source, StepKey, Unit};
use gradwire_tests::fuzzed::{floats, pick, spec};
use gradwire_tests::run::{self, bits};
use gradwire_tests::spellings::{and_examples, is_cut, keeps_exactly};
use libfuzzer_sys::fuzz_target;

const SPELLINGS: [&str; 8] = [
    "topk:density=0.3",
    "topk:density=1,index=rice,values=q4",
    "topk:density=0.2,index=context,values=bf16",
    "threshold:value=1,index=raw,values=q2",
    "dgc:density=0.2,momentum=0",
    "sidco:density=0.1,stages=2",
    "qsgd:bits=4,bucket=16,rounding=nearest",
    "bf16:memory=ef",
];

fuzz_target!(|data: &[u8]| {
    let mut data = data;
    let spellings = and_examples(&SPELLINGS, |spec| is_cut(spec) && keeps_exactly(spec));
    let codec = spec(pick(&mut data, &spellings)).codec;
    let size: u32 = pick(&mut data, &["64", "65", "100", "333", "1200"]).parse().expect("a number");
    let Some((fates, rest)) = data.split_at_checked(32) else { return };
    let (stranger, rest) = rest.split_at(rest.len() / 4);
    let values = floats(rest);
    let (grad, residual) = values.split_at(values.len() / 2);
    let n = grad.len();
    let (layout, units) = (LayoutRef::flat(n), [Unit::whole(n)]);
    // Zeros kept back are +0: a sum of zeros does not tell.
    let residual: Vec<f32> = residual[..n].iter().map(|kept| kept + 0.0).collect();
    let key = StepKey { seed: 1, step: 2, source: Source::Rank(3) };
    let size = PacketSize::new(size).expect("a size in range");
    let mut kept = residual.clone();
    let packets = match run::packets(&codec, key, &layout, &units, Grad::F32(grad), Some(&mut kept), size) {
        Ok(packets) => packets,
        Err(error) => {
            assert!(!matches!(error, EncodeError::NoPackets | EncodeError::NotBuilt));
            return assert_eq!(bits(&kept), bits(&residual));
        }
    };
    assert!(packets.iter().all(|packet| packet.len() <= size.bytes()));
    // Backwards, from anywhere: each is lost or taken, and some come twice.
    let (mut sum, mut taken) = (vec![0.0; n], vec![false; n]);
    let first = usize::from(fates[0]) % packets.len().max(1);
    let order = (0..packets.len()).rev().map(|at| (at + first) % packets.len());
    for at in order {
        let (packet, fate) = (&packets[at], fates[at % fates.len()] % 4);
        let times = if fate == 1 { 2 } else { 1 };
        for _ in 0..times {
            let _ = run::parse(stranger, &layout, &run::no_limits(), |frame| frame.units().count());
            let entry = run::parse(packet, &layout, &run::no_limits(), |frame| {
                if fate == 0 {
                    return Memory::new(&mut kept).give_back(frame);
                }
                let part = frame.units().map(|part| part.range()).collect::<Vec<_>>();
                if part.iter().flat_map(Clone::clone).any(|at| taken[at]) {
                    return;
                }
                part.into_iter().flatten().for_each(|at| taken[at] = true);
                frame.add_scaled_to(1.0, &mut sum);
            });
            entry.expect("a packet is a frame");
        }
    }
    let p: Vec<f32> = residual.iter().zip(grad).map(|(kept, grad)| kept + grad).collect();
    let both: Vec<f32> = sum.iter().zip(&kept).map(|(sent, kept)| sent + kept).collect();
    assert_eq!(bits(&both), bits(&p));
});
