//! Symbols of levels: how often they occur, their cost, and their sums.

/// Most symbols that an alphabet can have.
pub(crate) const MAX_ALPHABET: usize = 256;

/// Classes whose costs are summed side by side.
pub(crate) const CLASS_LANES: usize = 16;

/// From this number of symbols on, counting in several tables pays.
const MANY: usize = 1024;

/// Long runs are counted in four tables by turns: neighbours are often the same symbol, and one counter would
/// wait for itself.
pub(in crate::kernels) fn histogram(symbols: &[u8], counts: &mut [u32]) {
    if symbols.len() < MANY {
        return symbols.iter().for_each(|&symbol| counts[usize::from(symbol)] += 1);
    }
    let mut tables = [[0u32; MAX_ALPHABET]; 4];
    let (fours, rest) = symbols.as_chunks::<4>();
    for four in fours {
        tables.iter_mut().zip(four).for_each(|(table, &symbol)| table[usize::from(symbol)] += 1);
    }
    rest.iter().for_each(|&symbol| tables[0][usize::from(symbol)] += 1);
    for table in &tables {
        counts.iter_mut().zip(table).for_each(|(count, more)| *count += more);
    }
}

#[inline(always)]
pub(in crate::kernels) fn counted_class_costs(
    counts: &[u32],
    costs: &[[u32; CLASS_LANES]; MAX_ALPHABET],
    sums: &mut [u32; CLASS_LANES],
) {
    let mut total = *sums;
    for (&count, costs) in counts.iter().zip(costs) {
        total.iter_mut().zip(costs).for_each(|(sum, cost)| *sum += count * cost);
    }
    *sums = total;
}

#[inline(always)]
pub(in crate::kernels) fn class_costs(
    symbols: &[u8],
    costs: &[[u32; CLASS_LANES]; MAX_ALPHABET],
    sums: &mut [u32; CLASS_LANES],
) {
    // A local copy stays in registers.
    let mut total = *sums;
    for &symbol in symbols {
        total.iter_mut().zip(&costs[usize::from(symbol)]).for_each(|(sum, cost)| *sum += cost);
    }
    *sums = total;
}

/// Symbols in order of likelihood: 0, +1, −1, +2, −2, …
#[inline(always)]
pub(in crate::kernels) fn symbols_of(fields: &[u8], symbols: &mut [u8]) {
    for (symbol, &field) in symbols.iter_mut().zip(fields) {
        let is_positive = !field >> 7;
        *symbol = (field << 1).saturating_sub(is_positive);
    }
}

#[inline(always)]
pub(in crate::kernels) fn add_symbols(symbols: &[u8], scale: f32, weight: f32, acc: &mut [f32]) {
    for (acc, &symbol) in acc.iter_mut().zip(symbols) {
        let symbol = u32::from(symbol);
        let magnitude = scale * symbol.div_ceil(2) as i32 as f32;
        let is_negative = u32::from(symbol > 0) & !symbol;
        *acc += weight * f32::from_bits(magnitude.to_bits() | is_negative << 31);
    }
}
