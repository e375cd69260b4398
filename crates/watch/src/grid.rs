//! Busy time on a grid with a bounded number of cells per row; cells double in length when time exceeds the grid.

/// The initial length of a cell: a microsecond.
const CELL_AT_FIRST: u64 = 1000;

/// All times are in nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Grid {
    /// The maximal number of cells in a row.
    cells_max: usize,
    cell: u64,
    frozen: bool,
    rows: Vec<Vec<u64>>,
}

impl Grid {
    pub fn new(cells_max: usize) -> Grid {
        Grid { cells_max, cell: CELL_AT_FIRST, frozen: false, rows: Vec::new() }
    }

    pub fn add_row(&mut self) {
        self.rows.push(Vec::new());
    }

    /// The time up to which the grid extends at present.
    pub fn end(&self) -> u64 {
        self.cell.saturating_mul(self.cells_max as u64)
    }

    /// Extends the grid to `until` and fixes its cell length; busy time beyond its end is ignored from now on.
    pub fn freeze(&mut self, until: u64) {
        self.reach(until);
        self.frozen = true;
    }

    /// Adds busy time to a row, multiplied by `times` if one record stands for many.
    pub fn add(&mut self, row: usize, from: u64, to: u64, times: u64) {
        self.reach(to);
        let to = to.min(self.end());
        if from >= to {
            return;
        }
        let cells = &mut self.rows[row];
        let needed = to.div_ceil(self.cell) as usize;
        if cells.len() < needed {
            cells.resize(needed, 0);
        }
        let first = (from / self.cell) as usize;
        for (i, cell) in cells.iter_mut().enumerate().skip(first) {
            let begin = i as u64 * self.cell;
            if begin >= to {
                break;
            }
            let busy = to.min(begin + self.cell) - from.max(begin);
            *cell = cell.saturating_add(busy.saturating_mul(times));
        }
    }

    /// How long a row was busy between two times; busy time is assumed to be spread evenly within a cell.
    pub fn busy(&self, row: usize, from: f64, to: f64) -> f64 {
        let (cells, size) = (&self.rows[row], self.cell as f64);
        let range = (from / size) as usize..((to / size).ceil() as usize).min(cells.len());
        let part = |i: usize| {
            let (begin, end) = (i as f64 * size, (i + 1) as f64 * size);
            // Records that stand for many may add up to more than the cell's length.
            let busy = (cells[i] as f64 / size).min(1.0);
            busy * (to.min(end) - from.max(begin)).max(0.0)
        };
        range.map(part).sum()
    }

    /// The total busy time of a row.
    pub fn total(&self, row: usize) -> u64 {
        self.rows[row].iter().fold(0, |sum: u64, cell| sum.saturating_add(*cell))
    }

    fn reach(&mut self, time: u64) {
        while !self.frozen && time > self.end() {
            self.cell *= 2;
            for row in &mut self.rows {
                let sum = |pair: &[u64]| pair.iter().fold(0, |a: u64, b| a.saturating_add(*b));
                *row = row.chunks(2).map(sum).collect();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubling_preserves_busy_time_to_the_nanosecond() {
        let mut grid = Grid::new(1024);
        grid.add_row();

        let mut total = 0;
        for round in 0..1_000_000u64 {
            let from = round * 12_347;
            grid.add(0, from, from + 5_003, 1);
            total += 5_003;
        }

        assert!(grid.end() >= 12_347_000_000);
        assert!(grid.rows[0].len() <= 1024);
        assert_eq!(grid.rows[0].iter().sum::<u64>(), total);
    }

    #[test]
    fn a_frozen_grid_keeps_its_cells() {
        let mut grid = Grid::new(1024);
        grid.add_row();
        grid.add(0, 500, 2_000, 1);

        grid.freeze(3_000_000);
        grid.add(0, 3_500_000, 900_000_000, 1);

        assert_eq!(grid.end(), 4_096_000);
        assert_eq!(grid.busy(0, 0.0, 4_000.0), 1_500.0);
        assert_eq!(grid.busy(0, 3_500_000.0, 9e9), 596_000.0);
    }
}
