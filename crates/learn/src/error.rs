//! The errors of this crate: hyperparameters out of range, and data sets that do not fit together.

/// An optimizer's hyperparameter is out of range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OptimizerError {
    #[error("{name} is {value}; it must be at least 0 and below 1")]
    NotAFraction { name: &'static str, value: f32 },
    #[error("{name} is {value}; it must be a finite number, 0 or more")]
    Negative { name: &'static str, value: f32 },
    #[error(
        "epsilon is {0}; it must be a finite number above 0, because it is the denominator for parameters whose gradient is 0"
    )]
    Epsilon(f32),
    #[error("clip_norm is {0}; it must be a finite number above 0; omit it to disable clipping")]
    ClipNorm(f32),
}

/// A learning-rate schedule has a value out of range, or two that exclude each other.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    #[error("{name} is {value}; it is a fraction and must be from 0 to 1")]
    NotAFraction { name: &'static str, value: f64 },
    #[error("{name} is {value}; it must be more than 0")]
    NotPositive { name: &'static str, value: f32 },
    #[error("{name} is {value}; it must be a finite number")]
    Infinite { name: &'static str, value: f32 },
    #[error("the steps at {before} and {after} are out of order; sort them and remove duplicates")]
    StepsOutOfOrder { before: f64, after: f64 },
    #[error("the one_cycle schedule has its own warm-up; remove warm_up")]
    WarmUpOfOneCycle,
}

/// The contents of a data set do not fit its shape, or a text does not fit its vocabulary.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    #[error("a data set needs at least one row")]
    NoRows,
    #[error(
        "{rows} rows of {features} features need {} numbers, not {inputs}",
        rows.saturating_mul(*features)
    )]
    Inputs { rows: usize, features: usize, inputs: usize },
    #[error("row {row} has label {label}; with {classes} classes, labels are 0 to below {classes}")]
    RowLabel { row: usize, label: u32, classes: usize },
    #[error("row {row}, feature {feature} is {value}; every input must be finite")]
    NotFinite { row: usize, feature: usize, value: f32 },
    #[error("a data set needs at least one image of at least one pixel")]
    NoImages,
    #[error(
        "{images} images of {bytes_each} bytes need {}, not {bytes}",
        images.saturating_mul(*bytes_each)
    )]
    Pixels { images: usize, bytes_each: usize, bytes: usize },
    #[error(
        "image {image} has label {label}; with {classes} classes, labels are 0 to below {classes}"
    )]
    ImageLabel { image: usize, label: u8, classes: usize },
    #[error(
        "a text of {bytes} bytes is too short: with windows of {window} bytes, it needs at least {bytes_min}"
    )]
    TextTooShort { bytes: usize, window: usize, bytes_min: usize },
    #[error("the training text has no {0:?}: remove it or replace it")]
    UnknownCharacter(char),
    #[error("a vocabulary must be a non-empty list of distinct bytes in ascending order")]
    Vocabulary,
}
