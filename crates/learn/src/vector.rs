//! Arithmetic on flat vectors: plain IEEE multiply and add, so that every CPU gives the same bits.

pub type Vector = Vec<f32>;

/// y <- y + x
pub fn add(y: &mut [f32], x: &[f32]) {
    debug_assert_eq!(y.len(), x.len());
    y.iter_mut().zip(x).for_each(|(y, x)| *y += x);
}

/// y <- y + a x
pub fn add_scaled(y: &mut [f32], a: f32, x: &[f32]) {
    debug_assert_eq!(y.len(), x.len());
    y.iter_mut().zip(x).for_each(|(y, x)| *y += a * x);
}

/// y <- a y
pub fn scale(y: &mut [f32], a: f32) {
    y.iter_mut().for_each(|y| *y *= a);
}

/// Moves `y` towards `x` by `part` of the way: y <- y + part (x - y)
pub fn blend(y: &mut [f32], x: &[f32], part: f32) {
    debug_assert_eq!(y.len(), x.len());
    y.iter_mut().zip(x).for_each(|(y, x)| *y += part * (x - *y));
}

/// |x - y|^2, accumulated in f64: squares of ten million small numbers do not survive f32.
pub fn distance_squared(x: &[f32], y: &[f32]) -> f64 {
    debug_assert_eq!(x.len(), y.len());
    x.iter().zip(y).map(|(x, y)| f64::from(x - y) * f64::from(x - y)).sum()
}

/// |x|^2, accumulated in f64.
pub fn norm_squared(x: &[f32]) -> f64 {
    x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum()
}
