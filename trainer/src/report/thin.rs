//! Long curves, without the points that nobody can tell from their neighbours.

use super::svg::Curve;

/// Columns of a chart. A screen of twice the density shows as many across the widest chart.
const COLUMNS: usize = 1200;

/// A curve of any length with the same outline: of the points that fall into one column, the first, the last,
/// the lowest and the highest.
pub(super) fn thinned(curve: Curve, is_log: bool) -> Curve {
    let place = |x: f64| if is_log { x.ln() } else { x };
    let (Some(first), Some(last)) = (curve.first(), curve.last()) else { return curve };
    let (from, width) = (place(first.0), place(last.0) - place(first.0));
    if curve.len() <= 4 * COLUMNS || width.is_nan() || width <= 0.0 {
        return curve;
    }
    let column = |point: &(f64, f64)| ((place(point.0) - from) / width * COLUMNS as f64) as usize;
    curve.chunk_by(|a, b| column(a) == column(b)).flat_map(outline).collect()
}

fn outline(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let by_height = |&a: &usize, &b: &usize| points[a].1.total_cmp(&points[b].1);
    let (low, high) = ((0..points.len()).min_by(by_height), (0..points.len()).max_by(by_height));
    let mut kept = vec![0, low.unwrap_or(0), high.unwrap_or(0), points.len() - 1];
    kept.sort_unstable();
    kept.dedup();
    kept.into_iter().map(|at| points[at]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_curves_stay_and_long_ones_keep_their_outline() {
        let short: Curve = (0..4000).map(|x| (f64::from(x), 1.0)).collect();
        assert_eq!(thinned(short.clone(), false), short);
        assert_eq!(thinned(Curve::new(), false), []);
        for is_log in [false, true] {
            let height = |x: i32| {
                if x == 123_456 {
                    99.0
                } else if x == 250_001 {
                    -99.0
                } else {
                    (f64::from(x) / 7.0).sin()
                }
            };
            let long: Curve = (1..300_000).map(|x| (f64::from(x), height(x))).collect();
            let thin = thinned(long.clone(), is_log);
            assert!(thin.len() <= 4 * (COLUMNS + 1) && thin.len() > 1000, "{}", thin.len());
            assert_eq!((thin.first(), thin.last()), (long.first(), long.last()));
            assert!(thin.contains(&(123_456.0, 99.0)) && thin.contains(&(250_001.0, -99.0)));
            assert!(thin.windows(2).all(|pair| pair[0].0 < pair[1].0), "in order");
        }
    }
}
