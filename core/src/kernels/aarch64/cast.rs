//! Casts by instruction. The instruction rounds to nearest, ties to even, as the plain loop does. It is
//! written as assembly, because its intrinsics need a newer compiler than this crate requires.

use crate::kernels::scalar::cast as scalar;
use core::arch::aarch64::*;
use core::arch::asm;

/// [`put_f16`](crate::kernels::put_f16) for NEON, which the caller has detected.
pub(in crate::kernels) fn put_f16(p: &[u32], out: &mut [[u8; 2]]) {
    // SAFETY: `Isa::Neon` is named only where the machine has it.
    unsafe { put_f16_neon(p, out) }
}

#[target_feature(enable = "neon")]
fn put_f16_neon(p: &[u32], out: &mut [[u8; 2]]) {
    let ((whole, tail), (out, out_tail)) = (p.as_chunks::<8>(), out.as_chunks_mut::<8>());
    for (p, out) in whole.iter().zip(out) {
        // SAFETY: the arrays hold eight floats and eight halves.
        unsafe {
            let wide = [0, 4].map(|at| vld1q_u32(p.as_ptr().add(at)));
            vst1q_u16(out.as_mut_ptr().cast(), narrow(wide));
        }
    }
    scalar::put_f16(tail, out_tail);
}

#[target_feature(enable = "neon")]
fn narrow([front, back]: [uint32x4_t; 2]) -> uint16x8_t {
    let halves;
    // SAFETY: registers alone, and the floating-point status, which counts as a flag; Rust code runs with the
    // rounding mode to nearest.
    unsafe {
        asm!(
            "fcvtn {halves:v}.4h, {front:v}.4s",
            "fcvtn2 {halves:v}.8h, {back:v}.4s",
            halves = out(vreg) halves,
            front = in(vreg) front,
            back = in(vreg) back,
            options(pure, nomem, nostack),
        );
    }
    halves
}

/// [`add_f16`](crate::kernels::add_f16) for NEON, which the caller has detected.
pub(in crate::kernels) fn add_f16(values: &[[u8; 2]], weight: f32, acc: &mut [f32]) {
    // SAFETY: `Isa::Neon` is named only where the machine has it.
    unsafe { add_f16_neon(values, weight, acc) }
}

#[target_feature(enable = "neon")]
fn add_f16_neon(values: &[[u8; 2]], weight: f32, acc: &mut [f32]) {
    let ((whole, tail), (acc, acc_tail)) = (values.as_chunks::<8>(), acc.as_chunks_mut::<8>());
    for (values, acc) in whole.iter().zip(acc) {
        // SAFETY: the array holds eight halves.
        let halves = unsafe { vld1q_u16(values.as_ptr().cast()) };
        for (wide, acc) in widen(halves).into_iter().zip(acc.as_chunks_mut::<4>().0) {
            // SAFETY: the array holds a vector.
            unsafe {
                let sum = vaddq_f32(vld1q_f32(acc.as_ptr()), vmulq_n_f32(wide, weight));
                vst1q_f32(acc.as_mut_ptr(), sum);
            }
        }
    }
    scalar::add_f16(tail, weight, acc_tail);
}

#[target_feature(enable = "neon")]
fn widen(halves: uint16x8_t) -> [float32x4_t; 2] {
    let (front, back);
    // SAFETY: registers alone, and the floating-point status, which counts as a flag.
    unsafe {
        asm!(
            "fcvtl {front:v}.4s, {halves:v}.4h",
            "fcvtl2 {back:v}.4s, {halves:v}.8h",
            front = out(vreg) front,
            back = lateout(vreg) back,
            halves = in(vreg) halves,
            options(pure, nomem, nostack),
        );
    }
    [front, back]
}
