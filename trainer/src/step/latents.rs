//! Says when a learned codec begins to carry the means of a run, and when it does not.

use gradwire::Memory;
use gradwire_lgc::Counts;
use tracing::info;

/// What was last said of each unit: whether its mean was decoded.
#[derive(Debug, Default)]
pub(super) struct Latents(Vec<Option<bool>>);

impl Latents {
    /// Of each unit for which that changed, says whether the mean of this step was decoded. `before` is what
    /// was counted before the step.
    pub(super) fn note(&mut self, step: u64, before: &[Counts], memory: Option<&Memory<'_>>) {
        self.0.resize(before.len(), None);
        for (unit, ((was_decoded, before), now)) in
            self.0.iter_mut().zip(before).zip(counts(memory)).enumerate()
        {
            let is_decoded = now.decoded > before.decoded;
            let was_tried = is_decoded || now.refused > before.refused;
            if was_tried && was_decoded.replace(is_decoded) != Some(is_decoded) {
                let (lacking, end) = (now.lacking, if is_decoded { "" } else { "; values were sent" });
                info!(
                    step,
                    unit,
                    lacking,
                    "step {step}: the decoded mean of unit {unit} lacks {lacking:.2} of its energy{end}"
                );
            }
        }
    }
}

/// The counts of all units, if the memory is that of a learned codec.
pub(super) fn counts(memory: Option<&Memory<'_>>) -> Vec<Counts> {
    memory.into_iter().flat_map(Counts::of_memory).collect()
}
