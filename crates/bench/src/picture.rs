//! The comparison as a picture: a line for each row, a dot for each target, farther right where it is faster.

use crate::side_by_side::{Column, Part, lines};
use std::fmt::Write;

const LEFT: f64 = 230.0;
const WIDTH: f64 = 560.0;
const TOP: f64 = 70.0;
const STEP: f64 = 26.0;
/// The axis, as powers of ten of the local file system's speed.
const FROM: f64 = -3.0;
const TO: f64 = 1.0;
const COLOURS: [&str; 6] = [
    "#7f7f7f", "#1f77b4", "#2ca02c", "#9467bd", "#8c564b", "#e377c2",
];
const OURS: &str = "#d62728";

/// An SVG.
#[must_use]
pub fn draw(columns: &[Column], title: &str) -> String {
    let lines = lines(columns);
    let shown: Vec<&Column> = columns
        .iter()
        .filter(|column| column.part != Part::Native)
        .collect();
    let height = TOP + STEP * lines.len() as f64 + 50.0;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {height}\" font-family=\"sans-serif\" \
         font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"10\" y=\"22\" font-size=\"16\">{}</text>\n",
        LEFT + WIDTH + 40.0,
        escaped(title)
    );
    for (index, column) in shown.iter().enumerate() {
        let x = 10.0 + 125.0 * index as f64;
        let colour = colour(&shown, column);
        _ = writeln!(
            text,
            "<circle cx=\"{x}\" cy=\"44\" r=\"6\" fill=\"{colour}\"/><text x=\"{}\" y=\"48\">{}</text>",
            x + 11.0,
            escaped(&column.label)
        );
    }
    let bottom = TOP + STEP * lines.len() as f64;
    for power in FROM as i32..=TO as i32 {
        let (x, width) = (place(f64::from(power)), if power == 0 { 2.0 } else { 0.5 });
        let label = match power {
            0 => "local disk".to_owned(),
            1.. => format!("{}x", 10_i32.pow(power.unsigned_abs())),
            _ => format!("1/{}", 10_i32.pow(power.unsigned_abs())),
        };
        _ = writeln!(
            text,
            "<line x1=\"{x}\" y1=\"{TOP}\" x2=\"{x}\" y2=\"{bottom}\" stroke=\"#999\" stroke-width=\"{width}\"/>\
             <text x=\"{x}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
            bottom + 20.0
        );
    }
    for (index, line) in lines.iter().enumerate() {
        let y = TOP + STEP * (index as f64 + 0.5);
        _ = writeln!(
            text,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\
             <line x1=\"{LEFT}\" y1=\"{y}\" x2=\"{}\" y2=\"{y}\" stroke=\"#ddd\"/>",
            LEFT - 12.0,
            y + 4.0,
            escaped(line.row.title()),
            LEFT + WIDTH
        );
        // Ours last: it lies above the others.
        let ours = |part| u8::from(part == Part::Ours);
        let mut cells: Vec<_> = line.cells.iter().flatten().collect();
        cells.sort_by_key(|cell| ours(cell.column.part));
        for cell in cells
            .into_iter()
            .filter(|cell| cell.column.part != Part::Native)
        {
            let (x, radius) = (
                place(cell.speed.log10()),
                f64::from(5 + 2 * ours(cell.column.part)),
            );
            let colour = colour(&shown, cell.column);
            _ = writeln!(
                text,
                "<circle cx=\"{x:.1}\" cy=\"{y}\" r=\"{radius}\" fill=\"{colour}\"><title>{}: {:.3}</title></circle>",
                escaped(&cell.column.label),
                cell.speed
            );
        }
    }
    text.push_str("</svg>\n");
    text
}

fn place(power: f64) -> f64 {
    let power = power.clamp(FROM, TO);
    LEFT + WIDTH * (power - FROM) / (TO - FROM)
}

fn colour(shown: &[&Column], column: &Column) -> &'static str {
    if column.part == Part::Ours {
        return OURS;
    }
    let others = shown.iter().filter(|column| column.part != Part::Ours);
    let index = others
        .take_while(|other| other.label != column.label)
        .count();
    COLOURS[index % COLOURS.len()]
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_goes_from_a_thousandth_to_ten_times_and_keeps_what_is_beyond() {
        assert!((place(-3.0) - LEFT).abs() < 1e-9);
        assert!((place(5.0) - (LEFT + WIDTH)).abs() < 1e-9);
        assert!(place(0.0) > place(-0.5));
        assert_eq!(escaped("a<b & c"), "a&lt;b &amp; c");
    }
}
