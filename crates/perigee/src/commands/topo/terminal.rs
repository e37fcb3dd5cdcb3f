//! The map in letters.

use super::scale::Scale;
use crate::human;
use perigee_proto::admin::Topology;
use std::collections::BTreeMap;
use std::time::Duration;

const WIDTH: usize = 78;
const HEIGHT: usize = 18;
/// A letter is about twice as high as wide.
const ASPECT: f64 = 2.0;

/// The lines of the map, with a scale below; nothing where no node knows its place.
pub fn draw(topology: &Topology) -> String {
    // Names stand to the right of their places.
    let longest = topology
        .nodes
        .iter()
        .map(|node| node.name.chars().count())
        .max();
    let name = longest.unwrap_or(0).min(WIDTH / 2) + 2;
    let scale = Scale::of(
        topology,
        (WIDTH - name) as f64,
        (HEIGHT - 1) as f64 * ASPECT,
    );
    let mut groups: BTreeMap<(usize, usize), Vec<&str>> = BTreeMap::new();
    for node in &topology.nodes {
        if let Some(at) = node.at {
            let (x, y) = scale.place(at.x_us, at.y_us);
            let cell = ((y / ASPECT).round() as usize, x.round() as usize);
            groups.entry(cell).or_default().push(&node.name);
        }
    }
    if groups.is_empty() {
        return String::new();
    }
    let mut sheet = vec![vec![' '; WIDTH]; HEIGHT];
    for ((row, column), names) in &groups {
        for name in names {
            write_near(&mut sheet, *row, *column, &format!("* {name}"));
        }
    }
    let lines: Vec<String> = sheet.iter().map(|line| line.iter().collect()).collect();
    let mut lines: Vec<&str> = lines.iter().map(|line| line.trim_end()).collect();
    while lines.first().is_some_and(|line| line.is_empty()) {
        lines.remove(0);
    }
    while lines.last().is_some_and(|line| line.is_empty()) {
        lines.pop();
    }
    let (micros, long) = scale.bar(WIDTH as f64 / 4.0);
    let bar = "-".repeat((long.round() as usize).saturating_sub(2));
    let legend = human::time(Duration::from_micros(micros));
    format!("{}\n\n|{bar}| {legend}\n", lines.join("\n"))
}

/// Writes a text at a place, or where there is room next to it: above or below.
fn write_near(sheet: &mut [Vec<char>], row: usize, column: usize, text: &str) {
    let letters: Vec<char> = text
        .chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .take(WIDTH)
        .collect();
    let start = column.min(WIDTH - letters.len());
    let rows = sheet.len();
    let nearby = (0..rows).flat_map(|away| [row.checked_add(away), row.checked_sub(away)]);
    for row in nearby.flatten().filter(|row| *row < rows) {
        let after = (start + letters.len() + 1).min(WIDTH);
        let before = start.saturating_sub(1);
        if sheet[row][before..after].iter().all(|c| *c == ' ') {
            sheet[row][start..start + letters.len()].copy_from_slice(&letters);
            return;
        }
    }
}
