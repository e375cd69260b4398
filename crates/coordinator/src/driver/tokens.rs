//! The tokens that this coordinator makes and revokes.

use std::time::{Duration, SystemTime};

use paceline_identity::{Authority, Digest, Token, TokenChange, TokenId, Tokens};

use super::{Driver, DriverError};

impl Driver {
    /// Makes a token with which `uses_max` workers may join.
    pub fn make_token(&mut self, lasts: Duration, uses_max: u32) -> Result<Token, DriverError> {
        let authority = self.config.authority.as_ref();
        let fingerprint = authority.map_or(Digest([0; 32]), Authority::fingerprint);
        let (token, change) =
            self.memory.tokens.make(fingerprint, SystemTime::now() + lasts, uses_max);
        self.change_tokens(change);
        self.commit()?;
        Ok(token.at(&self.coordinators))
    }

    /// The first token of the job, without keeping its secret anywhere: every coordinator with the same authority derives it.
    pub fn derived_token(&mut self, lasts: Duration, uses_max: u32) -> Result<Token, DriverError> {
        let authority = self.config.authority.as_ref();
        let job = self.memory.job.to_string();
        let fingerprint = authority.map_or(Digest([0; 32]), Authority::fingerprint);
        // Without TLS a token keeps nobody out.
        let secret = authority.map_or(Digest::of(job.as_bytes()), |it| it.derive(&job));
        if let Some(token) = self.memory.tokens.derived(fingerprint, secret) {
            return Ok(token.at(&self.coordinators));
        }
        let expires = SystemTime::now() + lasts;
        let change = self.memory.tokens.derive(secret, expires, uses_max);
        self.change_tokens(change);
        self.commit()?;
        let token = self.memory.tokens.derived(fingerprint, secret).expect("it was just made");
        Ok(token.at(&self.coordinators))
    }

    pub fn tokens(&self) -> &Tokens {
        &self.memory.tokens
    }

    pub fn revoke_token(&mut self, token: TokenId) -> Result<(), DriverError> {
        self.change_tokens(TokenChange::Revoked(token));
        self.commit()
    }

    pub(super) fn change_tokens(&mut self, change: TokenChange) {
        self.memory.tokens.apply(&change);
        self.batch.tokens.push(change);
    }
}
