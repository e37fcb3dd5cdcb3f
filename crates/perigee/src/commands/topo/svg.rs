//! The map as a picture.

use super::scale::Scale;
use crate::human;
use perigee_proto::admin::{MappedNode, Topology};
use std::fmt::Write;
use std::time::Duration;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 520.0;
const MARGIN: f64 = 80.0;
const COLOURS: [&str; 8] = [
    "#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#7f7f7f",
];
/// Nodes without a named site that are so near to each other have one colour.
const TOGETHER_US: f64 = 3_000.0;

/// An SVG.
pub fn draw(topology: &Topology) -> String {
    let scale = Scale::of(topology, WIDTH - 2.0 * MARGIN, HEIGHT - 2.0 * MARGIN);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"14\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let mut groups: Vec<&MappedNode> = Vec::new();
    let mut taken: Vec<(f64, f64)> = Vec::new();
    for node in &topology.nodes {
        let Some(at) = node.at else { continue };
        let group = groups.iter().position(|other| together(node, other));
        let group = group.unwrap_or_else(|| {
            groups.push(node);
            groups.len() - 1
        });
        let colour = COLOURS[group % COLOURS.len()];
        let (x, y) = scale.place(at.x_us, at.y_us);
        let (x, y) = (x + MARGIN, y + MARGIN);
        let mut line = y + 5.0;
        while taken
            .iter()
            .any(|(a, b)| (a - x).abs() < 90.0 && (b - line).abs() < 15.0)
        {
            line += 16.0;
        }
        taken.push((x, line));
        // writing to a string cannot fail
        _ = writeln!(
            out,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"6\" fill=\"{colour}\" fill-opacity=\"0.75\"/>\
             <text x=\"{:.1}\" y=\"{line:.1}\">{}</text>",
            x + 11.0,
            escaped(&node.name)
        );
    }
    let (micros, long) = scale.bar(WIDTH / 5.0);
    let (bottom, right) = (HEIGHT - 24.0, MARGIN + long);
    let time = human::time(Duration::from_micros(micros));
    _ = writeln!(
        out,
        "<path d=\"M{MARGIN} {:.1}v10h{long:.1}v-10\" fill=\"none\" stroke=\"black\"/>\
         <text x=\"{:.1}\" y=\"{bottom:.1}\">{time}</text>",
        bottom - 10.0,
        right + 8.0
    );
    if let Some(error) = topology.median_error {
        _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{bottom:.1}\" text-anchor=\"end\" fill=\"#555\">off by {:.1} % in the middle of {}</text>",
            WIDTH - 20.0,
            error.as_f64() * 100.0,
            human::plural(topology.pairs.len(), "round trip")
        );
    }
    out + "</svg>\n"
}

fn together(a: &MappedNode, b: &MappedNode) -> bool {
    if !a.site.is_empty() && !b.site.is_empty() {
        return a.site == b.site;
    }
    let (Some(a), Some(b)) = (a.at, b.at) else {
        return false;
    };
    let (x, y) = ((a.x_us - b.x_us) as f64, (a.y_us - b.y_us) as f64);
    x.hypot(y) <= TOGETHER_US
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() => out.push('?'),
            c => out.push(c),
        }
    }
    out
}
