//! What encoders and memories ask a codec.
//!
//! A codec that a spelling named answers with all codecs of the list. One that was made by its own
//! constructor answers with its own code, so that a program without spellings links no other codec.

use crate::memory::residual_size;
use crate::raw::{Outcome, Rest, Size};
use codecs::format::CodecId;
use codecs::{Codec, EncodeError, Gather, LayoutRef, Memory, Scratch, ScratchLen, Spec, StepInput, Unit};

/// What every codec needs that makes frames: of [`Gather`] no more than that, since a table of functions
/// links all of them.
pub(crate) trait Frames {
    fn id(&self) -> CodecId;
    fn scratch_len(&self, units: &[Unit]) -> ScratchLen;
    fn encode(
        &self,
        step: &StepInput<'_>,
        memory: Option<&mut Memory<'_>>,
        scratch: &mut Scratch<'_>,
        out: &mut [u8],
    ) -> Result<usize, EncodeError>;
}

impl<C: Gather> Frames for C {
    fn id(&self) -> CodecId {
        Gather::id(self)
    }

    fn scratch_len(&self, units: &[Unit]) -> ScratchLen {
        Gather::scratch_len(self, units)
    }

    fn encode(
        &self,
        step: &StepInput<'_>,
        memory: Option<&mut Memory<'_>>,
        scratch: &mut Scratch<'_>,
        out: &mut [u8],
    ) -> Result<usize, EncodeError> {
        Gather::encode(self, step, memory, scratch, out)
    }
}

pub(crate) trait Method: Sync {
    /// What makes the frames.
    fn frames<'c>(&self, codec: &'c Codec) -> &'c dyn Frames;

    /// Writes the units of a layout, as many as there is room for, and returns how many there are. Refuses a
    /// codec without frames, and one that clips by the number of workers, which an encoder does not know.
    fn units(&self, spec: &Spec, layout: &LayoutRef<'_>, slots: &mut [Unit]) -> Outcome<usize>;

    /// The most working memory that it needs: for a frame or for packets, now or at the beginning of a
    /// warm-up.
    fn needs(&self, spec: &Spec, layout: &LayoutRef<'_>) -> ScratchLen;

    /// Bytes of a memory.
    fn memory_size(&self, spec: &Spec, layout: &LayoutRef<'_>) -> Outcome<Size>;

    /// A memory of zeros in what is left of the caller's.
    fn memory(&self, spec: &Spec, layout: &LayoutRef<'_>, rest: &mut Rest) -> Outcome<Memory<'static>>;
}

/// One codec, whose units are one, and which keeps a residual or nothing.
pub(crate) struct Alone {
    pub(crate) frames: for<'c> fn(&'c Codec) -> &'c dyn Frames,
}

impl Method for Alone {
    fn frames<'c>(&self, codec: &'c Codec) -> &'c dyn Frames {
        (self.frames)(codec)
    }

    fn units(&self, _spec: &Spec, layout: &LayoutRef<'_>, slots: &mut [Unit]) -> Outcome<usize> {
        slots.fill(Unit::whole(layout.len()));
        Ok(1)
    }

    fn needs(&self, spec: &Spec, layout: &LayoutRef<'_>) -> ScratchLen {
        self.frames(&spec.codec).scratch_len(&[Unit::whole(layout.len())])
    }

    fn memory_size(&self, spec: &Spec, layout: &LayoutRef<'_>) -> Outcome<Size> {
        residual_size(spec, layout)
    }

    fn memory(&self, spec: &Spec, layout: &LayoutRef<'_>, rest: &mut Rest) -> Outcome<Memory<'static>> {
        residual_size(spec, layout)?;
        let mut kept = Memory::new(rest.array(layout.len())?);
        // So that it knows that nothing in it is large; else it reads all of it in the first step.
        if cfg!(feature = "heap") {
            kept.clear();
        }
        Ok(kept)
    }
}
