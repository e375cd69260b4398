//! Systems on which processes pass each other no segments.

use std::convert::Infallible;
use std::io;

use mio::{Registry, Token};
use paceline_learn::kernels::shared::OwnSegment;
use paceline_runtime::WorkerId;

pub type Nonce = [u64; 2];

pub struct Door(Infallible);
pub struct Bell(Infallible);

impl Bell {
    pub fn ring(&self) {
        match self.0 {}
    }
}

pub struct Passed {
    pub from: WorkerId,
    pub nonce: Nonce,
    pub segment: Infallible,
    pub bell: Bell,
}

impl Door {
    pub fn open() -> io::Result<Door> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub fn name(&self) -> Nonce {
        match self.0 {}
    }

    pub fn register(&self, _: &Registry, _: Token, _: Token) -> io::Result<()> {
        match self.0 {}
    }

    pub fn quiet(&self) {
        match self.0 {}
    }

    pub fn pass(&self, _: Nonce, _: (Nonce, WorkerId), _: &OwnSegment) -> io::Result<()> {
        match self.0 {}
    }

    pub fn arrived(&self) -> Option<Passed> {
        match self.0 {}
    }
}

pub fn random() -> io::Result<Nonce> {
    Err(io::ErrorKind::Unsupported.into())
}
