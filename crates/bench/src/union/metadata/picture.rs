//! Both tables as a picture: operations a second by the number of clients on the left, by locality on the right.

use super::report::{by_clients, by_locality, median};
use super::{Case, Kind, Outcome, Settings};
use std::fmt::Write;

const WIDTH: f64 = 330.0;
const HEIGHT: f64 = 300.0;
const TOP: f64 = 80.0;
/// Where the two parts begin.
const LEFTS: [f64; 2] = [70.0, 490.0];
/// From the frame of a part to its first and last point.
const INSET: f64 = 20.0;
const COLOURS: [&str; 7] = [
    "#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f",
];

/// The axis of rates: powers of ten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Axis {
    from: i32,
    to: i32,
}

impl Axis {
    /// One that has room for all values.
    fn of(values: impl Iterator<Item = f64> + Clone) -> Self {
        let powers = values.map(|value| value.max(1e-3).log10());
        let least = powers.clone().fold(f64::INFINITY, f64::min);
        let most = powers.fold(f64::NEG_INFINITY, f64::max);
        if least > most {
            return Self { from: 0, to: 1 };
        }
        let from = least.floor() as i32;
        Self {
            from,
            to: (most.ceil() as i32).max(from + 1),
        }
    }

    fn place(self, value: f64) -> f64 {
        let part =
            (value.max(1e-3).log10() - f64::from(self.from)) / f64::from(self.to - self.from);
        TOP + HEIGHT * (1.0 - part)
    }
}

/// An SVG.
#[must_use]
pub fn draw(settings: &Settings, outcome: &Outcome) -> String {
    let axis = Axis::of(outcome.series.values().flatten().copied());
    let (width, height) = (LEFTS[1] + WIDTH + 20.0, TOP + HEIGHT + 55.0);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"10\" y=\"22\" font-size=\"16\">Operations a second of all clients, on 8 hosts at 4 sites</text>\n"
    );
    for (index, kind) in Kind::ALL.into_iter().enumerate() {
        let x = 16.0 + 110.0 * index as f64;
        _ = writeln!(
            text,
            "<circle cx=\"{x}\" cy=\"46\" r=\"5\" fill=\"{}\"/><text x=\"{}\" y=\"50\">{}</text>",
            COLOURS[index],
            x + 10.0,
            kind.title()
        );
    }
    let crowd = settings.crowd();
    let titles = [
        "clients, with all operations at their own sites".to_owned(),
        format!("of the operations of {crowd} clients at their own sites"),
    ];
    let parts = [by_clients(settings), by_locality(settings)];
    for ((left, title), columns) in LEFTS.into_iter().zip(titles).zip(parts) {
        text += &frame(axis, left, &title);
        text += &lines(outcome, axis, left, &columns);
    }
    text.push_str("</svg>\n");
    text
}

fn frame(axis: Axis, left: f64, title: &str) -> String {
    let mut text = String::new();
    for power in axis.from..=axis.to {
        let y = axis.place(10_f64.powi(power));
        // Writing to a string cannot fail.
        _ = writeln!(
            text,
            "<line x1=\"{left}\" y1=\"{y}\" x2=\"{}\" y2=\"{y}\" stroke=\"#ccc\"/>\
             <text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
            left + WIDTH,
            left - 8.0,
            y + 4.0,
            grouped(10_f64.powi(power))
        );
    }
    _ = writeln!(
        text,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{title}</text>",
        left + WIDTH / 2.0,
        TOP + HEIGHT + 44.0
    );
    text
}

fn lines(outcome: &Outcome, axis: Axis, left: f64, columns: &[(String, Case)]) -> String {
    let step = (WIDTH - 2.0 * INSET) / (columns.len().saturating_sub(1).max(1)) as f64;
    let x = |index: usize| left + INSET + step * index as f64;
    let mut text = String::new();
    for (index, (heading, _)) in columns.iter().enumerate() {
        _ = writeln!(
            text,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{heading}</text>",
            x(index),
            TOP + HEIGHT + 22.0
        );
    }
    for (kind, colour) in Kind::ALL.into_iter().zip(COLOURS) {
        let (mut path, mut dots) = (String::new(), String::new());
        for (index, (heading, case)) in columns.iter().enumerate() {
            let Some(rate) = median(outcome, kind, *case) else {
                continue;
            };
            let (x, y) = (x(index), axis.place(rate));
            _ = write!(path, "{x:.1},{y:.1} ");
            _ = writeln!(
                dots,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"><title>{}, {heading}: {rate:.0}</title></circle>",
                kind.title()
            );
        }
        _ = writeln!(
            text,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.trim_end()
        );
        text += &dots;
    }
    text
}

/// A power of ten with commas, as people write it.
fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_has_room_for_all_values() {
        let axis = Axis::of([30.0, 4_000.0].into_iter());
        assert_eq!(axis, Axis { from: 1, to: 4 });
        assert!((axis.place(10.0) - (TOP + HEIGHT)).abs() < 1e-9);
        assert!((axis.place(10_000.0) - TOP).abs() < 1e-9);
        assert_eq!(Axis::of([].into_iter()), Axis { from: 0, to: 1 });
        assert_eq!(grouped(10_000.0), "10,000");
    }
}
