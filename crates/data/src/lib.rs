//! Data sets and pictures in files: finding, reading and fetching them.

pub mod catalog;
mod cifar;
mod client;
pub mod error;
pub mod folder;
pub mod get;
mod idx;
pub mod image_form;
mod limits;
pub mod load;
pub mod picture;
mod resize;
mod sheets;

pub use catalog::{CATALOG, Entry};
pub use error::{GetError, LoadError, PictureError};
pub use get::{Got, get};
pub use image_form::{ImageForm, class_name, image_form};
pub use load::{Sets, load};
pub use picture::Picture;
