//! Classification images, kept as bytes and scaled when a batch is made.

use gradwire::arithmetic::{Loop, vectorised};

use super::{DataFault, Part};

/// No image may have more values than this: 64 times those of a 32×32 colour image.
const MAX_VALUES_PER_IMAGE: u64 = 196_608;

/// Images of one shape and their labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageSet {
    shape: [usize; 3],
    pixels: Vec<u8>,
    labels: Vec<u8>,
}

/// How bytes become features: `(byte / full - mean) / deviation`, by channel.
#[derive(Clone, Debug, PartialEq)]
pub struct Scaling {
    /// The byte that stands for 1.
    pub full: f32,
    /// Subtracted, one per channel.
    pub mean: Vec<f32>,
    /// Divided by, one per channel.
    pub deviation: Vec<f32>,
}

/// Training and test images of one task.
#[derive(Clone, Debug)]
pub struct Images {
    name: String,
    classes: usize,
    scaling: Scaling,
    train: ImageSet,
    test: ImageSet,
}

impl ImageSet {
    /// Checks that the parts fit and every label is below `classes`.
    ///
    /// `shape` is channels, height, width; `pixels` are whole images of that shape, one after the other.
    ///
    /// # Errors
    ///
    /// `Empty` without images or values, `TooLarge` for an absurd shape, `BadRecordSize` or `CountMismatch`
    /// if the lengths do not fit, `LabelOutOfRange`.
    pub fn new(
        shape: [usize; 3],
        pixels: Vec<u8>,
        labels: Vec<u8>,
        classes: usize,
    ) -> Result<Self, DataFault> {
        let values = values_per_image(shape)?;
        let images = pixels.len() / values;
        if !pixels.len().is_multiple_of(values) {
            return Err(DataFault::BadRecordSize { bytes: pixels.len() as u64, record_bytes: values as u64 });
        }
        if images != labels.len() {
            let label_file = "the label file".to_owned();
            return Err(DataFault::CountMismatch { images, labels: labels.len(), label_file });
        }
        if images == 0 {
            return Err(DataFault::Empty);
        }
        match labels.iter().position(|&label| usize::from(label) >= classes) {
            Some(record) => {
                Err(DataFault::LabelOutOfRange { record, label: u64::from(labels[record]), classes })
            }
            None => Ok(Self { shape, pixels, labels }),
        }
    }

    /// Number of images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Never: an empty set is refused when it is read.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Channels, height, width.
    pub fn shape(&self) -> [usize; 3] {
        self.shape
    }

    /// The bytes of image `index`, channel by channel, row by row.
    pub fn pixels(&self, index: usize) -> &[u8] {
        let values = self.shape.iter().product::<usize>();
        &self.pixels[index * values..][..values]
    }

    /// The label of image `index`.
    pub fn label(&self, index: usize) -> u32 {
        u32::from(self.labels[index])
    }

    /// Adds shape, pixels and labels to a checksum.
    pub(super) fn add_to(&self, sum: &mut crc32fast::Hasher) {
        self.shape.iter().for_each(|&side| sum.update(&(side as u64).to_le_bytes()));
        sum.update(&self.pixels);
        sum.update(&self.labels);
    }

    /// Number of images of each class.
    pub fn class_counts(&self, classes: usize) -> Vec<usize> {
        let mut counts = vec![0; classes];
        self.labels.iter().for_each(|&label| counts[usize::from(label)] += 1);
        counts
    }
}

/// Values of one image of this shape, if that is a sane number.
pub(super) fn values_per_image(shape: [usize; 3]) -> Result<usize, DataFault> {
    let limit = MAX_VALUES_PER_IMAGE;
    let product = shape.iter().try_fold(1_u64, |product, &side| product.checked_mul(side as u64));
    match product {
        Some(0) => Err(DataFault::Empty),
        Some(values) if values <= limit => Ok(values as usize),
        _ => Err(DataFault::TooLarge { what: "image size", actual: product.unwrap_or(u64::MAX), limit }),
    }
}

impl Scaling {
    /// Bytes to [0, 1], nothing subtracted.
    pub fn unit(full: f32, channels: usize) -> Self {
        Self { full, mean: vec![0.0; channels], deviation: vec![1.0; channels] }
    }

    /// Mean 0 and deviation 1 in every channel over `set`, from exact integer sums.
    ///
    /// A constant channel is only centred.
    pub fn standard(full: f32, set: &ImageSet) -> Self {
        let [channels, height, width] = set.shape;
        let (mut mean, mut deviation) = (Vec::new(), Vec::new());
        for channel in 0..channels {
            let planes = set.pixels.chunks_exact(height * width).skip(channel).step_by(channels);
            let (mut sum, mut squares) = (0_u64, 0_u64);
            for &byte in planes.flatten() {
                sum += u64::from(byte);
                squares += u64::from(byte) * u64::from(byte);
            }
            let count = (set.len() * height * width) as f64;
            let centre = sum as f64 / count;
            let spread = libm::sqrt((squares as f64 / count - centre * centre).max(0.0));
            mean.push((centre / f64::from(full)) as f32);
            deviation.push(if spread > 0.0 { (spread / f64::from(full)) as f32 } else { 1.0 });
        }
        Self { full, mean, deviation }
    }

    /// Appends the features of one image.
    pub fn push_features(&self, pixels: &[u8], features: &mut Vec<f32>) {
        let plane = pixels.len() / self.mean.len();
        for (channel, bytes) in pixels.chunks_exact(plane).enumerate() {
            let (full, mean, deviation) = (self.full, self.mean[channel], self.deviation[channel]);
            let start = features.len();
            features.resize(start + plane, 0.0);
            vectorised(Scale { bytes, features: &mut features[start..], full, mean, deviation });
        }
    }
}

/// Makes features of the bytes of one channel.
struct Scale<'a> {
    bytes: &'a [u8],
    features: &'a mut [f32],
    full: f32,
    mean: f32,
    deviation: f32,
}

impl Loop for Scale<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { bytes, features, full, mean, deviation } = self;
        for (feature, &byte) in features.iter_mut().zip(bytes) {
            *feature = (f32::from(byte) / full - mean) / deviation;
        }
    }
}

impl Images {
    /// Puts a task together.
    ///
    /// # Errors
    ///
    /// `ShapeMismatch` if the test images have another shape than the training images.
    pub fn new(
        name: impl Into<String>,
        classes: usize,
        scaling: Scaling,
        train: ImageSet,
        test: ImageSet,
    ) -> Result<Self, DataFault> {
        if train.shape != test.shape {
            return Err(DataFault::ShapeMismatch { expected: train.shape, actual: test.shape });
        }
        Ok(Self { name: name.into(), classes, scaling, train, test })
    }

    /// Short name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Labels are below this.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// Channels, height, width of every image.
    pub fn shape(&self) -> [usize; 3] {
        self.train.shape
    }

    /// How bytes become features.
    pub fn scaling(&self) -> &Scaling {
        &self.scaling
    }

    /// One part; there is no separate validation part.
    pub fn part(&self, part: Part) -> &ImageSet {
        match part {
            Part::Train => &self.train,
            Part::Valid | Part::Test => &self.test,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standard_scaling_centres_each_channel() {
        // Two images of two channels of one pixel: 0, 10 and 4, 10.
        let set = ImageSet::new([2, 1, 1], vec![0, 10, 4, 10], vec![0, 1], 2).unwrap();
        let scaling = Scaling::standard(1.0, &set);
        assert_eq!(scaling.mean, [2.0, 10.0]);
        assert_eq!(scaling.deviation, [2.0, 1.0]);
        let mut features = Vec::new();
        scaling.push_features(set.pixels(1), &mut features);
        assert_eq!(features, [1.0, 0.0]);
    }

    #[test]
    fn absurd_shapes_are_refused() {
        for shape in [[usize::MAX, 2, 2], [1, 1 << 20, 1]] {
            let fault = ImageSet::new(shape, vec![], vec![], 10).unwrap_err();
            assert!(matches!(fault, DataFault::TooLarge { .. }), "{fault}");
        }
    }

    #[test]
    fn a_label_that_is_no_class_is_refused() {
        let fault = ImageSet::new([1, 1, 1], vec![0, 0], vec![9, 10], 10).unwrap_err();
        assert_eq!(fault.to_string(), "record 1: label 10 is not below 10");
    }
}
