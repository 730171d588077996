//! Curves as SVG.
//!
//! The plotting library draws with fixed colours and one font. These then become the variables and the font
//! of the page's style sheet, so that one drawing suits light and dark.

use plotters::coord::Shift;
use plotters::coord::combinators::BindKeyPoints;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

use super::numbers::scientific;
use super::thin::thinned;
use super::ticks::log_ticks;

/// Points from left to right.
pub(super) type Curve = Vec<(f64, f64)>;

/// One direction of a chart.
pub(super) struct Axis<'a> {
    pub(super) name: &'a str,
    pub(super) is_log: bool,
    pub(super) format: &'a dyn Fn(f64) -> String,
}

/// What a chart has besides its curves.
pub(super) struct Chart<'a> {
    pub(super) x: Axis<'a>,
    pub(super) y: Axis<'a>,
    /// Whether curves may lie on top of each other: earlier ones are then drawn wider, so that all can be
    /// seen.
    pub(super) overlaps: bool,
    /// Whether each curve is drawn as separate points; a line then joins those of the front.
    pub(super) front: Option<Curve>,
    /// For each curve how far seeds spread around it, below and above. Empty where there is one seed.
    pub(super) spreads: Vec<[Curve; 2]>,
}

/// Small, so that text of [`FONT`] still has 11 pixels where a page of 390 leaves 335 for a chart.
const SIZE: (u32, u32) = (420, 300);

/// Height of a line of text in the units of [`SIZE`]. The plotting library takes 1/1.24 of it as font size.
const FONT: u32 = 18;

/// Shares of an axis that a label needs: a word such as "100 MB" across, a line of text up.
const ACROSS: f64 = 0.19;
const UP: f64 = 0.1;

/// Radius of a point, in the units of [`SIZE`].
const DOT: i32 = 5;

/// Stand-ins that the style sheet's variables replace.
const TEXT: RGBColor = RGBColor(1, 2, 1);
const LINE: RGBColor = RGBColor(1, 2, 2);
const GRID: RGBColor = RGBColor(1, 2, 3);
const SERIES_RED: u8 = 2;
/// Colours of the style sheet: `--c0` …
const COLOURS: usize = 12;

/// The colour of curve `number`.
pub(super) fn css_colour(number: usize) -> String {
    format!("var(--c{})", number % COLOURS)
}

fn series(number: usize) -> RGBColor {
    RGBColor(SERIES_RED, 2, (number % COLOURS) as u8)
}

/// Bytes in powers of 1000.
pub(super) fn bytes_label(value: f64) -> String {
    let text = crate::report::numbers::bytes(value);
    let (number, unit) = text.split_once(' ').unwrap_or((&text, ""));
    let number =
        if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number };
    format!("{number} {unit}")
}

/// A number without superfluous digits.
pub(super) fn plain_label(value: f64) -> String {
    if let Some(text) = scientific(value) {
        return text.replace(".0e", "e");
    }
    let digits = match value.abs() {
        large if large >= 1000.0 => 0,
        middle if middle >= 10.0 => 2,
        _ => 4,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// As [`plain_label`], with an exponent for numbers of which that would not show two digits.
pub(super) fn small_label(value: f64) -> String {
    if value == 0.0 || value.abs() >= 1e-3 {
        return plain_label(value);
    }
    format!("{value:.1e}").replace(".0e", "e")
}

/// The chart as an `svg` element; nothing if no curve has a point that can be shown.
pub(super) fn draw(chart: &Chart<'_>, curves: &[Curve]) -> Option<String> {
    let shown = |curve: &Curve| -> Curve {
        let fits = |axis: &Axis<'_>, value: f64| value.is_finite() && (!axis.is_log || value > 0.0);
        let points = curve.iter().copied().filter(|&(x, y)| fits(&chart.x, x) && fits(&chart.y, y));
        thinned(points.collect(), chart.x.is_log)
    };
    let curves: Vec<Curve> = curves.iter().map(shown).collect();
    let spreads: Vec<[Curve; 2]> = chart.spreads.iter().map(|sides| sides.each_ref().map(shown)).collect();
    let all: Vec<&Curve> = curves.iter().chain(spreads.iter().flatten()).collect();
    let (x, y) = (range(&chart.x, &all, |point| point.0)?, range(&chart.y, &all, |point| point.1)?);
    let ticks = |axis: &Axis<'_>, range, room| if axis.is_log { log_ticks(range, room) } else { Vec::new() };
    let (x_ticks, y_ticks) = (ticks(&chart.x, &x, ACROSS), ticks(&chart.y, &y, UP));
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        let drawn = Drawn { curves: &curves, spreads: &spreads };
        let result = match (chart.x.is_log, chart.y.is_log) {
            (false, false) => on_axes(&area, chart, &drawn, x, y),
            (false, true) => on_axes(&area, chart, &drawn, x, y.log_scale().with_key_points(y_ticks)),
            (true, false) => on_axes(&area, chart, &drawn, x.log_scale().with_key_points(x_ticks), y),
            (true, true) => {
                let x = x.log_scale().with_key_points(x_ticks);
                on_axes(&area, chart, &drawn, x, y.log_scale().with_key_points(y_ticks))
            }
        };
        result.ok()?;
        area.present().ok()?;
    }
    Some(themed(&text))
}

/// Where each curve ends, in words.
pub(super) fn describe(chart: &Chart<'_>, names: &[&str], curves: &[Curve]) -> String {
    let (x, y) = (&chart.x, &chart.y);
    let end = |(name, curve): (&&str, &Curve)| {
        let &(at, value) = curve.last()?;
        Some(format!("{name}: {} at {}", (y.format)(value), (x.format)(at)))
    };
    let ends: Vec<String> = names.iter().zip(curves).filter_map(end).collect();
    format!("{} by {}. Last points: {}", y.name, x.name, ends.join("; "))
}

/// From the smallest to the largest value, with a margin above and below.
fn range(axis: &Axis<'_>, curves: &[&Curve], of: fn(&(f64, f64)) -> f64) -> Option<std::ops::Range<f64>> {
    let values = || curves.iter().copied().flatten().map(of);
    let (low, high) = (values().reduce(f64::min)?, values().reduce(f64::max)?);
    Some(if axis.is_log {
        let margin = (high / low).powf(0.06).max(1.25);
        low / margin..high * margin
    } else {
        // A tenth where there is one value, so that ticks differ.
        let share = if high > low { 0.04 * (high - low) } else { 0.1 * high.abs() };
        let margin = share.max(1e-9 * high.abs()).max(1e-9);
        (if low == 0.0 { low } else { low - margin })..high + margin
    })
}

type DrawResult = Result<(), Box<dyn std::error::Error>>;

/// What can be shown of the curves.
struct Drawn<'a> {
    curves: &'a [Curve],
    spreads: &'a [[Curve; 2]],
}

/// How much of its colour a band of seeds has.
const BAND: f64 = 0.18;

fn on_axes<X, Y>(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    chart: &Chart<'_>,
    drawn: &Drawn<'_>,
    x: X,
    y: Y,
) -> DrawResult
where
    X: AsRangedCoord<Value = f64>,
    Y: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let mut context = ChartBuilder::on(area)
        .margin(6)
        .margin_right(20)
        .x_label_area_size(50)
        .y_label_area_size(76)
        .build_cartesian_2d(x, y)
        .map_err(|error| error.to_string())?;
    context
        .configure_mesh()
        .x_desc(chart.x.name)
        .y_desc(chart.y.name)
        .x_labels(5)
        .y_labels(6)
        .x_label_formatter(&|value| (chart.x.format)(*value))
        .y_label_formatter(&|value| (chart.y.format)(*value))
        .label_style(("sans-serif", FONT, &TEXT))
        .axis_desc_style(("sans-serif", FONT, &TEXT))
        .axis_style(LINE)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .draw()
        .map_err(|error| error.to_string())?;
    if let Some(front) = &chart.front {
        let line = LineSeries::new(front.iter().copied(), ShapeStyle::from(LINE).stroke_width(1));
        context.draw_series(line).map_err(|error| error.to_string())?;
    }
    for (number, [low, high]) in drawn.spreads.iter().enumerate() {
        let colour = series(number);
        let drawn = if chart.front.is_some() {
            let bar = |(&low, &high)| PathElement::new(vec![low, high], colour.stroke_width(2));
            context.draw_series(low.iter().zip(high).map(bar)).map(drop)
        } else {
            let outline: Vec<(f64, f64)> = low.iter().chain(high.iter().rev()).copied().collect();
            context.draw_series([Polygon::new(outline, colour.mix(BAND).filled())]).map(drop)
        };
        drawn.map_err(|error| error.to_string())?;
    }
    let curves = drawn.curves;
    for (number, curve) in curves.iter().enumerate() {
        let points = curve.iter().copied();
        let drawn = if chart.front.is_some() {
            let dot = |point| Circle::new(point, DOT, series(number).filled());
            context.draw_series(points.map(dot)).map(drop)
        } else {
            let under = if chart.overlaps { (curves.len() - 1 - number).min(3) as u32 } else { 0 };
            let style = ShapeStyle::from(series(number)).stroke_width(2 + under);
            context.draw_series(LineSeries::new(points, style)).map(drop)
        };
        drawn.map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Replaces stand-ins by variables of the style sheet.
fn themed(svg: &str) -> String {
    let mut svg = svg.replace("font-family=\"sans-serif\" ", "");
    let mut replace = |colour: RGBColor, variable: &str| {
        let hex = format!("#{:02X}{:02X}{:02X}", colour.0, colour.1, colour.2);
        for attribute in ["fill", "stroke"] {
            let fixed = format!("{attribute}=\"{hex}\"");
            svg = svg.replace(&fixed, &format!("style=\"{attribute}:var(--{variable})\""));
        }
    };
    replace(TEXT, "text");
    replace(LINE, "faint");
    replace(GRID, "grid");
    (0..COLOURS).for_each(|number| replace(series(number), &format!("c{number}")));
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_has_no_colour_of_its_own_and_nothing_is_drawn_of_nothing() {
        let axis = |is_log| Axis { name: "x", is_log, format: &plain_label };
        let chart =
            Chart { x: axis(false), y: axis(true), overlaps: false, front: None, spreads: Vec::new() };
        let svg = draw(&chart, &[vec![(0.0, 1.0), (1.0, 0.1)], vec![(0.0, f64::NAN)]]).unwrap();
        assert!(svg.contains("var(--c0)") && svg.contains("var(--text)") && !svg.contains("#0"), "{svg}");
        assert_eq!(draw(&chart, &[vec![(0.0, 0.0)]]), None);
    }

    #[test]
    fn text_has_eleven_pixels_where_a_chart_has_335() {
        let axis = || Axis { name: "x", is_log: false, format: &plain_label };
        let chart = Chart { x: axis(), y: axis(), overlaps: false, front: None, spreads: Vec::new() };
        let svg = draw(&chart, &[vec![(0.0, 1.0), (1.0, 0.1)]]).unwrap();
        let sizes: Vec<f64> = svg
            .split("font-size=\"")
            .skip(1)
            .map(|rest| rest.split('"').next().unwrap().parse().unwrap())
            .collect();
        assert!(sizes.len() > 8, "{svg}");
        assert!(sizes.iter().all(|size| size * 335.0 / f64::from(SIZE.0) >= 11.0), "{sizes:?}");
    }

    #[test]
    fn a_chart_is_described_by_its_last_points() {
        let axis = |name| Axis { name, is_log: false, format: &plain_label };
        let chart =
            Chart { x: axis("step"), y: axis("loss"), overlaps: false, front: None, spreads: Vec::new() };
        let text = describe(&chart, &["none", "topk"], &[vec![(1.0, 2.0), (2.0, 0.5)], vec![]]);
        assert_eq!(text, "loss by step. Last points: none: 0.5 at 2");
    }

    #[test]
    fn points_are_dots_with_a_line_along_the_front() {
        let axis = || Axis { name: "x", is_log: false, format: &plain_label };
        let front = Some(vec![(0.0, 1.0), (1.0, 2.0)]);
        let chart = Chart { x: axis(), y: axis(), overlaps: false, front, spreads: Vec::new() };
        let svg = draw(&chart, &[vec![(0.0, 1.0)], vec![(1.0, 2.0)], vec![(1.0, 0.0)]]).unwrap();
        assert_eq!(svg.matches("<circle").count(), 3, "{svg}");
    }

    #[test]
    fn one_value_has_different_ticks_and_twelve_curves_have_colours_of_their_own() {
        let axis = || Axis { name: "x", is_log: false, format: &plain_label };
        let chart =
            Chart { x: axis(), y: axis(), overlaps: false, front: Some(Vec::new()), spreads: Vec::new() };
        let svg = draw(&chart, &vec![vec![(40.0, 88.0)]; 12]).unwrap();
        let mut ticks: Vec<&str> = svg.lines().filter(|line| line.trim().parse::<f64>().is_ok()).collect();
        let all = ticks.len();
        ticks.sort_unstable();
        ticks.dedup();
        assert!(all > 6 && ticks.len() == all, "{svg}");
        assert!((0..12).all(|number| svg.contains(&format!("var(--c{number})"))), "{svg}");
    }

    /// Texts of a drawing that are numbers with a unit or without.
    fn labels(svg: &str) -> Vec<&str> {
        svg.lines().map(str::trim).filter(|line| line.starts_with(|c: char| c.is_ascii_digit())).collect()
    }

    #[test]
    fn logarithmic_axes_without_a_power_of_ten_have_labels() {
        let axis = |name| Axis { name, is_log: true, format: &plain_label };
        let chart = Chart { x: axis("x"), y: axis("y"), overlaps: false, front: None, spreads: Vec::new() };
        for (low, high) in [(220.0, 250.0), (1.3, 1.9), (3e5, 8e5), (0.012, 0.5), (1e-3, 9e6)] {
            let svg = draw(&chart, &[vec![(low, high), (high, low)]]).unwrap();
            assert!((6..=18).contains(&labels(&svg).len()), "{low} to {high}: {svg}");
        }
    }

    #[test]
    fn seeds_have_bands_around_lines_and_bars_through_points() {
        let axis = || Axis { name: "x", is_log: false, format: &plain_label };
        let curve = vec![(1.0, 50.0), (2.0, 60.0)];
        let around = |by: f64| curve.iter().map(|&(x, y)| (x, y + by)).collect::<Curve>();
        let spreads = || vec![[around(-30.0), around(30.0)]];
        let lines = Chart { x: axis(), y: axis(), overlaps: false, front: None, spreads: spreads() };
        let svg = draw(&lines, std::slice::from_ref(&curve)).unwrap();
        assert_eq!(svg.matches("<polygon").count(), 1, "{svg}");
        assert!(svg.contains("fill:var(--c0)") && labels(&svg).contains(&"80"), "the band fits: {svg}");
        let points = Chart { front: Some(Vec::new()), spreads: spreads(), ..lines };
        let svg = draw(&points, std::slice::from_ref(&curve)).unwrap();
        assert_eq!((svg.matches("<polygon").count(), svg.matches("<circle").count()), (0, 2), "{svg}");
        let bars = |svg: &str| {
            let lines = svg.lines().filter(|line| line.starts_with("<polyline"));
            lines.filter(|line| line.contains("stroke:var(--c0)")).count()
        };
        let without = draw(&Chart { spreads: Vec::new(), ..points }, &[curve]).unwrap();
        assert_eq!((bars(&svg), bars(&without)), (2, 0), "a bar for each point");
    }

    #[test]
    fn three_hundred_thousand_steps_take_as_much_room_as_a_few_thousand() {
        let axis = || Axis { name: "x", is_log: false, format: &plain_label };
        let chart = Chart { x: axis(), y: axis(), overlaps: false, front: None, spreads: Vec::new() };
        let curve: Curve = (0..300_000).map(|x| (f64::from(x), f64::from(x % 97))).collect();
        assert!(draw(&chart, &[curve]).unwrap().len() < 60_000);
    }

    #[test]
    fn labels_are_short() {
        assert_eq!([1e36, 4.2e7, 123_456.0, -2e9].map(plain_label), ["1e36", "4.2e7", "123456", "-2e9"]);
        assert_eq!([0.0, 0.05, 2.5, 97.5, 600.0].map(plain_label), ["0", "0.05", "2.5", "97.5", "600"]);
        assert_eq!([1e3, 1.5e6].map(bytes_label), ["1 kB", "1.5 MB"]);
        assert_eq!([100.0, 0.001, 0.00025, 1e-7].map(small_label), ["100", "0.001", "2.5e-4", "1e-7"]);
    }
}
