use proptest::prelude::*;

use super::*;
use crate::point::Point;
use crate::point::tests::{point, scale};
use crate::store::Builder;

proptest! {
    /// Compares with brute force: every access of the window is in its bin.
    #[test]
    fn bins_against_brute_force(
        points in prop::collection::vec((0..5000u32, 0..3000u32, 0..4u16), 1..200),
        place in (0..320_000u64, 1..320_000u64),
        time in (0..3000u64, 1..3000u64),
        columns in 1..50usize,
        rows in 1..50usize,
    ) {
        let scale = scale(5000, 3000, 4, 1);
        let mut points: Vec<Point> = points
            .into_iter()
            .map(|(line, tick, thread)| point(line, tick, thread, 0, 1.0))
            .collect();
        let builder = Builder::new(&scale, None);
        builder.add(0, &mut points).expect("in memory");
        let store = builder.finish();
        let asked = Frame {
            place_from: place.0,
            place_to: place.0 + place.1,
            from_ns: time.0,
            to_ns: time.0 + time.1,
            columns,
            rows,
        };
        let sources = Sources { scale: &scale, store: &store, pyramid: None };
        let picture = Picture::new(sources, ColourBy::Thread, None, &asked).expect("in memory");
        let frame = &picture.frame;
        prop_assert!(frame.columns <= columns && frame.rows <= rows);
        prop_assert!(frame.place_from <= asked.place_from.min(5000 * 64));
        let row_bytes = (frame.place_to - frame.place_from) / frame.rows as u64;
        let column_ns = (frame.to_ns - frame.from_ns) / frame.columns as u64;
        let end = (asked.place_to.div_ceil(64).min(5000), asked.to_ns.min(3000));
        let mut expected = vec![[0f32; 4]; frame.rows * frame.columns];
        for point in &points {
            let (place, time) = (u64::from(point.line) * 64, u64::from(point.tick));
            if place >= frame.place_from && u64::from(point.line) < end.0
                && time >= frame.from_ns && time < end.1
            {
                let row = ((place - frame.place_from) / row_bytes) as usize;
                let column = ((time - frame.from_ns) / column_ns) as usize;
                expected[row * frame.columns + column][usize::from(point.thread)] += 1.0;
            }
        }
        for (bin, counts) in expected.iter().enumerate() {
            let all: f32 = counts.iter().sum();
            prop_assert_eq!(picture.accesses[bin], all);
            let most = counts.iter().copied().fold(0.0, f32::max);
            match picture.colours[bin] {
                EMPTY => prop_assert_eq!(all, 0.0),
                colour => prop_assert_eq!(counts[usize::from(colour)], most),
            }
        }
        let value = Value::new(sources, &asked).expect("in memory");
        let sum: f64 = picture.totals.iter().sum();
        prop_assert_eq!(value.accesses, sum);
        prop_assert_eq!(value.samples as f64, sum);
    }
}

#[test]
fn times_that_no_clock_has_are_multiplied_out() {
    let machine = nearpage_machine::preset("flash-8").expect("preset");
    let (space, tables) = (crate::space::Space::default(), Default::default());
    for times in [
        (0, u64::MAX),
        (7, u64::MAX - 7),
        (0, (1 << 61) + 12_345),
        (9, 3),
    ] {
        let scale = Scale::new(&space, &tables, &machine, 1, times);
        let window = Window {
            lines: 0..scale.lines,
            ticks: 0..scale.ticks,
        };
        let shown = frame(&scale, &window, 1, 1);
        assert!(shown.to_ns > 0 && shown.to_ns <= 1 << 63, "{shown:?}");
    }
}
