//! From round trips to places on paper.

use perigee_proto::admin::Topology;

/// How a map is laid on a sheet: the same scale both ways, all of it in the middle.
pub struct Scale {
    left_us: f64,
    top_us: f64,
    /// Units of the sheet for a microsecond.
    unit: f64,
}

/// Less than this is not spread over the whole sheet: it would be noise that is shown.
const LEAST_US: f64 = 2_000.0;

impl Scale {
    /// A scale by which all nodes fit on a sheet.
    pub fn of(topology: &Topology, width: f64, height: f64) -> Self {
        let points = || topology.nodes.iter().filter_map(|node| node.at);
        let span = |of: fn(i64, i64) -> i64, axis: fn(&perigee_proto::admin::MapPoint) -> i64| {
            let all = points().map(|at| axis(&at));
            all.reduce(of).unwrap_or(0) as f64
        };
        let (x_min, x_max) = (span(i64::min, |at| at.x_us), span(i64::max, |at| at.x_us));
        let (y_min, y_max) = (span(i64::min, |at| at.y_us), span(i64::max, |at| at.y_us));
        let (wide, high) = ((x_max - x_min).max(LEAST_US), (y_max - y_min).max(LEAST_US));
        let unit = (width / wide).min(height / high);
        Self {
            left_us: f64::midpoint(x_min, x_max) - width / unit / 2.0,
            top_us: f64::midpoint(y_min, y_max) - height / unit / 2.0,
            unit,
        }
    }

    /// Where a point of the map is on the sheet.
    pub fn place(&self, x_us: i64, y_us: i64) -> (f64, f64) {
        (
            (x_us as f64 - self.left_us) * self.unit,
            (y_us as f64 - self.top_us) * self.unit,
        )
    }

    /// A round number of microseconds that takes no more than `most` of the sheet, and what it takes.
    pub fn bar(&self, most: f64) -> (u64, f64) {
        let round = (2..7).flat_map(|power| [1, 2, 5].map(|digit| digit * 10_u64.pow(power)));
        let fitting = round.take_while(|micros| *micros as f64 * self.unit <= most);
        let micros = fitting.last().unwrap_or(100);
        (micros, micros as f64 * self.unit)
    }
}
