//! Data sets that live in files: where they are, how they are read, how they get there.

pub mod catalog;
mod cifar;
mod client;
pub mod folder;
pub mod get;
mod idx;
pub mod image_form;
pub mod load;
pub mod picture;
mod resize;
mod sheets;

pub use catalog::{CATALOG, Entry};
pub use get::{Got, get};
pub use image_form::{ImageForm, class_name, image_form};
pub use load::{Sets, load};
pub use picture::Picture;
