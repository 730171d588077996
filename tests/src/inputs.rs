//! Gradients that a short name describes. Integers and powers of two only, so they are the same on every
//! machine.

use std::fmt;

/// A sequence of pseudo-random words (SplitMix64), apart from the generator under test.
#[derive(Clone, Debug)]
pub struct Words(u64);

impl Words {
    /// The sequence of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next_u64() % bound
    }
}

/// Two to the power of `exponent`, which must be that of a normal float.
#[must_use]
pub fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((127 + exponent) as u32) << 23)
}

/// How a vector of values is made.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// Nothing but +0.
    Zero,
    /// Nothing but −0.
    NegativeZero,
    /// These values, whatever the length asked for.
    List(Vec<f32>),
    /// About normal, standard deviation 1: a sum of twelve uniform draws.
    Normal(u64),
    /// Normal times powers of two from 2⁻²⁰ to 2¹¹, the larger the rarer.
    Heavy(u64),
    /// Subnormals, zeros of both signs among them.
    Denormal(u64),
    /// Any exponent up to 2⁹³, any mantissa.
    Range(u64),
    /// ±2, ±1, ±1/2 and zeros of both signs, so that there are many ties.
    Ties(u64),
    /// One in 64 normal, the others zero.
    Sparse(u64),
    /// Normal, in runs of 500 that are loud, 8 times, and 64 times quieter, and then zero.
    Uneven(u64),
    /// A matrix of 48 columns: normal times a power of two for each row and one for each column. A fourth of
    /// the rows are those above them.
    Rows(u64),
}

impl Input {
    /// Reads what [`Display`](fmt::Display) prints.
    ///
    /// # Errors
    /// The text, where it is not a name or not followed by a number.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (name, argument) = text.split_once(':').unwrap_or((text, ""));
        let seed = || argument.parse().map_err(|_| format!("no seed in '{text}'"));
        Ok(match name {
            "zero" => Self::Zero,
            "negzero" => Self::NegativeZero,
            "list" => {
                let values = argument.split(',').filter(|value| !value.is_empty()).map(parse_value);
                Self::List(values.collect::<Result<_, _>>()?)
            }
            "normal" => Self::Normal(seed()?),
            "heavy" => Self::Heavy(seed()?),
            "denormal" => Self::Denormal(seed()?),
            "range" => Self::Range(seed()?),
            "ties" => Self::Ties(seed()?),
            "sparse" => Self::Sparse(seed()?),
            "uneven" => Self::Uneven(seed()?),
            "rows" => Self::Rows(seed()?),
            _ => return Err(format!("unknown input '{text}'")),
        })
    }

    /// The first `n` values.
    #[must_use]
    pub fn values(&self, n: usize) -> Vec<f32> {
        let draw = |seed: u64, value: fn(&mut Words) -> f32| {
            let mut words = Words::new(seed);
            (0..n).map(|_| value(&mut words)).collect()
        };
        match self {
            Self::Zero => vec![0.0; n],
            Self::NegativeZero => vec![-0.0; n],
            Self::List(values) => values.clone(),
            Self::Normal(seed) => draw(*seed, normal),
            Self::Heavy(seed) => draw(*seed, heavy),
            Self::Denormal(seed) => draw(*seed, denormal),
            Self::Range(seed) => draw(*seed, wide),
            Self::Ties(seed) => {
                draw(*seed, |words| [2.0, -2.0, 1.0, -1.0, 0.5, -0.5, 0.0, -0.0][words.below(8) as usize])
            }
            Self::Sparse(seed) => draw(*seed, |words| if words.below(64) == 0 { normal(words) } else { 0.0 }),
            Self::Uneven(seed) => {
                let loudness = |i: usize| [1.0, 0.125, 0.015_625, 0.0][i / 500 % 4];
                draw(*seed, normal).into_iter().enumerate().map(|(i, value)| value * loudness(i)).collect()
            }
            Self::Rows(seed) => rows(*seed, n),
        }
    }
}

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zero => f.write_str("zero"),
            Self::NegativeZero => f.write_str("negzero"),
            Self::List(values) => {
                let hex: Vec<String> =
                    values.iter().map(|value| format!("0x{:08x}", value.to_bits())).collect();
                write!(f, "list:{}", hex.join(","))
            }
            Self::Normal(seed) => write!(f, "normal:{seed}"),
            Self::Heavy(seed) => write!(f, "heavy:{seed}"),
            Self::Denormal(seed) => write!(f, "denormal:{seed}"),
            Self::Range(seed) => write!(f, "range:{seed}"),
            Self::Ties(seed) => write!(f, "ties:{seed}"),
            Self::Sparse(seed) => write!(f, "sparse:{seed}"),
            Self::Uneven(seed) => write!(f, "uneven:{seed}"),
            Self::Rows(seed) => write!(f, "rows:{seed}"),
        }
    }
}

/// A decimal, or the bits of a float behind `0x`.
fn parse_value(text: &str) -> Result<f32, String> {
    let value = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok().map(f32::from_bits),
        None => text.parse().ok(),
    };
    value.ok_or_else(|| format!("'{text}' is not a float"))
}

/// Columns of the matrix of [`Input::Rows`].
const COLUMNS: usize = 48;

fn rows(seed: u64, n: usize) -> Vec<f32> {
    let mut words = Words::new(seed);
    let mut scale = |most: u64| words.below(most) as i32 - words.below(most) as i32;
    let columns: Vec<i32> = (0..COLUMNS).map(|_| scale(5)).collect();
    let mut values: Vec<f32> = Vec::new();
    while values.len() < n {
        let (row_scale, is_copy) = (scale(5), scale(4) > 1);
        if is_copy && values.len() >= COLUMNS {
            values.extend_from_within(values.len() - COLUMNS..);
        } else {
            let draws = &mut Words::new(seed ^ values.len() as u64);
            values.extend(columns.iter().map(|column| normal(draws) * power_of_two(row_scale + column)));
        }
    }
    values.truncate(n);
    values
}

fn normal(words: &mut Words) -> f32 {
    let sum: i64 = (0..12).map(|_| words.below(1 << 16) as i64 - (1 << 15)).sum();
    sum as f32 * power_of_two(-16)
}

fn heavy(words: &mut Words) -> f32 {
    normal(words) * power_of_two(words.next_u64().trailing_zeros().min(31) as i32 - 20)
}

fn denormal(words: &mut Words) -> f32 {
    let magnitude = (words.next_u64() as u32 & 0x007f_ffff) >> words.below(24);
    f32::from_bits(magnitude | (words.next_u64() as u32 & 1) << 31)
}

fn wide(words: &mut Words) -> f32 {
    let exponent = words.below(221) as u32;
    f32::from_bits(exponent << 23 | words.next_u64() as u32 & 0x807f_ffff)
}
