//! A gradient in packets over a link that loses every third one: what is lost is given back, and comes with
//! the next step.
//!
//! ```sh
//! cargo run -p gradwire --example lossy_link
//! ```
use gradwire::packets::{PacketEncoder, PacketSize};
use gradwire::{Decoder, Grad, LayoutRef, Limits, Memory, Source, Spec, StepInput, StepKey};

const N: usize = 10_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let layout = LayoutRef::flat(N);
    let spec = Spec::parse("topk:density=0.05,values=q4,max_packet_bytes=256")?;
    let size: PacketSize = spec.packets.expect("the spelling names it");
    let units: Vec<_> = spec.units.units(&layout).collect();
    let (mut memory, limits) = (Memory::new(vec![0.0; N]), Limits::for_layout(&layout));
    let (mut packets, mut decoder) = (PacketEncoder::new(), Decoder::new());
    let (mut received, mut total) = (vec![0.0f32; N], vec![0.0f64; N]);

    for step in 0..20 {
        let grad: Vec<f32> = (0..N).map(|i| ((i * 7 + step * 13) % 101) as f32 - 50.0).collect();
        total.iter_mut().zip(&grad).for_each(|(sum, grad)| *sum += f64::from(*grad));
        let key = StepKey { seed: 3, step: step as u64, source: Source::Rank(0) };
        let grad = Grad::F32(&grad);
        let input = StepInput { key, layout: &layout, units: &units, grad };
        let count = packets.encode(&spec.codec, &input, Some(&mut memory), size)?;
        let mut lost = 0;
        for at in 0..count {
            let packet = packets.packet(at).expect("there are so many");
            let frame = decoder.parse(packet, &layout, &limits)?;
            if (at + step) % 3 == 0 {
                // Nobody acknowledged it.
                memory.give_back(&frame);
                lost += 1;
            } else {
                frame.add_scaled_to(1.0, &mut received);
            }
        }
        println!("step {step:2}: {count} packets, {lost} lost, kept back: norm {:.0}", memory.norm());
    }

    // Nothing is lost in silence: what arrived and what is kept is what there was, but for the rounding of
    // these sums.
    let known =
        received.iter().zip(memory.residual()).map(|(sent, kept)| f64::from(*sent) + f64::from(*kept));
    let largest = known.zip(&total).map(|(known, total)| (known - total).abs()).fold(0.0, f64::max);
    println!("largest difference between what there was and what arrived or is kept: {largest:.4}");
    assert!(largest < 0.1);
    Ok(())
}
