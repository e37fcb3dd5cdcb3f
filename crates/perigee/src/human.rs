//! Numbers and tables as people read them; lines fit 80 columns.

use std::fmt::Write;
use std::time::Duration;

/// Columns that every terminal has.
pub const COLUMNS: usize = 80;

/// `1.5 GiB`: three digits at most, binary units.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // 999.5 would print as "1000": the next unit has it as 0.98
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if value < 9.995 {
        2
    } else if value < 99.95 {
        1
    } else {
        0
    };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// `850 us`, `12 ms`, `3.4 s`, `2 min 5 s`.
pub fn time(span: Duration) -> String {
    let us = span.as_micros();
    match us {
        0..1_000 => format!("{us} us"),
        1_000..10_000 => format!("{:.1} ms", us as f64 / 1e3),
        10_000..1_000_000 => format!("{} ms", us / 1_000),
        1_000_000..60_000_000 => format!("{:.1} s", us as f64 / 1e6),
        60_000_000..3_600_000_000 => two(us / 60_000_000, "min", us / 1_000_000 % 60, "s"),
        _ => two(us / 3_600_000_000, "h", us / 60_000_000 % 60, "min"),
    }
}

/// `2 min 5 s`, or `2 min` where nothing is over.
fn two(large: u128, unit: &str, small: u128, small_unit: &str) -> String {
    match small {
        0 => format!("{large} {unit}"),
        small => format!("{large} {unit} {small} {small_unit}"),
    }
}

/// `12,345`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1 node`, `3 nodes`.
pub fn plural(number: usize, noun: &str) -> String {
    if number == 1 {
        format!("1 {noun}")
    } else {
        format!("{} {noun}s", count(number as u64))
    }
}

/// A paragraph after `mark`, broken between words, with the later lines indented below the first.
pub fn paragraph(mark: &str, text: &str) -> String {
    let indent = " ".repeat(mark.chars().count());
    let mut out = String::new();
    let mut line = mark.to_owned();
    let mut empty = true;
    for word in text.split(' ') {
        if !empty && line.chars().count() + 1 + word.chars().count() > COLUMNS {
            out.push_str(&line);
            out.push('\n');
            line.clone_from(&indent);
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(word);
        empty = false;
    }
    out.push_str(&line);
    out.push('\n');
    out
}

/// A duration as people type it: `90s`, `15m`, `2h`, `1d`; a bare number is seconds.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let split = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale = match unit {
        "" | "s" => 1,
        "m" | "min" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err(format!("`{unit}` is no unit of time: use s, m, h or d")),
    };
    let number: u64 = number
        .parse()
        .map_err(|_| "expected a whole number and a unit, as in 15m".to_owned())?;
    number
        .checked_mul(scale)
        .map(Duration::from_secs)
        .ok_or_else(|| "too long".to_owned())
}

/// A size as people type it: `4096`, `64K`, `256M`, `1G` (binary units).
pub fn parse_size(text: &str) -> Result<u64, String> {
    let split = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let shift = match unit.trim_end_matches("iB") {
        "" | "B" => 0,
        "K" | "k" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(format!("`{unit}` is no unit of size: use K, M, G or T")),
    };
    let number: u64 = number
        .parse()
        .map_err(|_| "expected a whole number and a unit, as in 256M".to_owned())?;
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| "too large".to_owned())
}

/// Which side of its column a text stands on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Rows under headings. The widest columns are cut, with `…`, until a line fits.
pub struct Table {
    heads: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new(heads: &[(&'static str, Align)]) -> Self {
        Self {
            heads: heads.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row; it has one text per heading.
    pub fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.heads.len());
        self.rows.push(cells);
    }

    /// The table as lines, each no wider than [`COLUMNS`] and indented by `indent`.
    pub fn render(&self, indent: usize) -> String {
        let widths = self.widths(COLUMNS - indent);
        let mut out = String::new();
        let heads: Vec<String> = self.heads.iter().map(|(h, _)| (*h).to_owned()).collect();
        for cells in std::iter::once(&heads).chain(&self.rows) {
            let mut line = " ".repeat(indent);
            for ((cell, (_, align)), width) in cells.iter().zip(&self.heads).zip(&widths) {
                let cell = cut(cell, *width);
                // no infallible-error handling: writing to a string cannot fail
                let _ = match align {
                    Align::Left => write!(line, "{cell:<width$}  "),
                    Align::Right => write!(line, "{cell:>width$}  "),
                };
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }

    fn widths(&self, room: usize) -> Vec<usize> {
        let mut widths: Vec<usize> = self
            .heads
            .iter()
            .map(|(head, _)| head.chars().count())
            .collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        while widths.iter().map(|w| w + 2).sum::<usize>() > room + 2 {
            let Some(widest) = widths.iter_mut().max() else {
                break;
            };
            if *widest <= 4 {
                break;
            }
            *widest -= 1;
        }
        widths
    }
}

fn cut(text: &str, width: usize) -> String {
    // a path from a peer must not move the cursor of a person's terminal
    let clean: String = text
        .chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect();
    if clean.chars().count() <= width {
        return clean;
    }
    let mut short: String = clean.chars().take(width.saturating_sub(1)).collect();
    short.push('…');
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_three_digits_at_most() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (1 << 20, "1.00 MiB"),
            (1_048_064, "1.00 MiB"),
            (15 << 20, "15.0 MiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn times_and_counts() {
        assert_eq!(time(Duration::from_micros(850)), "850 us");
        assert_eq!(time(Duration::from_millis(12)), "12 ms");
        assert_eq!(time(Duration::from_secs(125)), "2 min 5 s");
        assert_eq!(time(Duration::from_secs(3600)), "1 h");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(count(12), "12");
    }

    #[test]
    fn paragraphs_break_between_words() {
        assert_eq!(paragraph("- ", "a b"), "- a b\n");
        let text = paragraph("- ", &"word ".repeat(40));
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS));
        assert!(text.lines().skip(1).all(|line| line.starts_with("  word")));
        assert_eq!(text.matches("word").count(), 40);
    }

    #[test]
    fn what_people_type() {
        assert_eq!(parse_time("15m"), Ok(Duration::from_secs(900)));
        assert_eq!(parse_time("90"), Ok(Duration::from_secs(90)));
        assert!(parse_time("soon").is_err());
        assert!(parse_time("-1s").is_err());
        assert!(parse_time("99999999999999999999d").is_err());
        assert_eq!(parse_size("256M"), Ok(256 << 20));
        assert_eq!(parse_size("1GiB"), Ok(1 << 30));
        assert!(parse_size("1Q").is_err());
        assert!(parse_size("99999999999T").is_err());
    }

    #[test]
    fn a_table_never_passes_eighty_columns_and_drops_control_characters() {
        let mut table = Table::new(&[
            ("NAME", Align::Left),
            ("SIZE", Align::Right),
            ("PATH", Align::Left),
        ]);
        table.row(vec![
            "n".repeat(70),
            "1".to_owned(),
            format!("/x\x1b[2J{}", "p".repeat(90)),
        ]);
        table.row(vec!["short".to_owned(), "22".to_owned(), "/".to_owned()]);
        let text = table.render(2);
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS));
        assert!(!text.contains('\x1b'));
        assert_eq!(text.lines().count(), 3);
    }

    #[test]
    fn fuzz_times_and_sizes() {
        let examples = ["15m".into(), "2h".into(), "90s".into()];
        perigee_fuzz::assault("perigee::parse_time", &examples, |bytes| {
            parse_time(&String::from_utf8_lossy(bytes)).into()
        });
        let examples = ["16MiB".into(), "4k".into(), "7".into()];
        perigee_fuzz::assault("perigee::parse_size", &examples, |bytes| {
            parse_size(&String::from_utf8_lossy(bytes)).into()
        });
    }
}
