//! Columns whose rows are all equal, which need not be decoded.

use parquet::data_type::{DataType, FloatType, Int32Type, Int64Type};
use parquet::file::statistics::{Statistics, ValueStatistics};

/// Values that can be taken from a row group's statistics if all rows are equal.
pub(super) trait Constant: Sized {
    fn constant(statistics: &Statistics) -> Option<Self>;
}

impl Constant for i32 {
    fn constant(statistics: &Statistics) -> Option<Self> {
        match statistics {
            Statistics::Int32(values) => the_only::<Int32Type>(values),
            _ => None,
        }
    }
}

impl Constant for i64 {
    fn constant(statistics: &Statistics) -> Option<Self> {
        match statistics {
            Statistics::Int64(values) => the_only::<Int64Type>(values),
            _ => None,
        }
    }
}

impl Constant for f32 {
    fn constant(statistics: &Statistics) -> Option<Self> {
        match statistics {
            Statistics::Float(values) => the_only::<FloatType>(values),
            _ => None,
        }
    }
}

impl Constant for bool {
    fn constant(_: &Statistics) -> Option<Self> {
        None
    }
}

/// The value that is both the least and the greatest.
fn the_only<T: DataType>(values: &ValueStatistics<T::T>) -> Option<T::T> {
    let greatest = values.max_opt();
    greatest
        .filter(|greatest| values.min_opt() == Some(greatest))
        .cloned()
}
