//! The best parameters of a run that may end early, as a safetensors file.

use std::collections::HashMap;

use gradwire::Layout;
use safetensors::tensor::SafeTensors;
use serde::{Deserialize, Serialize};

use super::replica::{PARAMS, ReplicaError, malformed, read_slice, read_vector, write_slices};

/// Keys of the metadata that the file holds beside the parameters.
const STEPS: &str = "steps";
const LOSS: &str = "loss";
/// The tensor of the statistics.
const CARRIED: &str = "carried";

/// The parameters that had the smallest validation loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// After how many steps.
    pub steps: u64,
    /// The loss.
    pub loss: f64,
    /// The flat parameters.
    pub params: Vec<f32>,
    /// The statistics that models carry beside them, the mean of all workers; empty if there are none.
    pub carried: Vec<f32>,
}

impl Best {
    /// A safetensors file with the parameters, cut into the tensors of the layout, and the statistics.
    pub(super) fn to_bytes(&self, layout: &Layout) -> Result<Vec<u8>, ReplicaError> {
        // The shortest digits that are read as the same number.
        let said = [(STEPS, self.steps.to_string()), (LOSS, format!("{:?}", self.loss))];
        let said: HashMap<_, _> = said.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        let carried = (!self.carried.is_empty()).then_some((CARRIED, self.carried.as_slice()));
        write_slices(&[(PARAMS, &self.params)], carried, said, layout)
    }

    /// Reads [`to_bytes`](Self::to_bytes).
    pub(super) fn from_bytes(content: &[u8], layout: &Layout) -> Result<Self, ReplicaError> {
        let (_, header) = SafeTensors::read_metadata(content).map_err(malformed)?;
        let said = |key: &str| {
            let value = header.metadata().as_ref().and_then(|metadata| metadata.get(key));
            value.ok_or_else(|| malformed(format!("no {key}")))
        };
        let steps = said(STEPS)?.parse().map_err(|error| malformed(format!("{STEPS}: {error}")))?;
        let loss = said(LOSS)?.parse().map_err(|error| malformed(format!("{LOSS}: {error}")))?;
        let file = SafeTensors::deserialize(content).map_err(malformed)?;
        let params = read_slice(&file, PARAMS, layout)?;
        let carried = if file.names().contains(&CARRIED) { read_vector(&file, CARRIED)? } else { Vec::new() };
        Ok(Self { steps, loss, params, carried })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_parameters_round_trip_and_a_part_of_them_is_refused() {
        let layout = Layout::packed([("a", vec![2, 3]), ("b", vec![4])]).unwrap();
        let params: Vec<f32> = (0..10).map(|at| 0.1 * at as f32).collect();
        for carried in [vec![], vec![0.5, 2.0, -1.0]] {
            let best = Best { steps: 120, loss: 1.0 / 3.0, params: params.clone(), carried };
            let bytes = best.to_bytes(&layout).unwrap();
            assert_eq!(Best::from_bytes(&bytes, &layout).unwrap(), best);
            assert!((0..bytes.len()).all(|cut| Best::from_bytes(&bytes[..cut], &layout).is_err()));
        }
    }
}
