//! The messages of etcd's API (version 3) that a store needs, and nothing more. Fields that are left out are skipped when they are read.

use prost::{Message, Oneof};

pub const RANGE: &str = "/etcdserverpb.KV/Range";
pub const TXN: &str = "/etcdserverpb.KV/Txn";
pub const LEASE_GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
pub const LEASE_REVOKE: &str = "/etcdserverpb.Lease/LeaseRevoke";
/// A stream in both directions, on which one question and its answer are as good as any number.
pub const LEASE_KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";

#[derive(Clone, PartialEq, Message)]
pub struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// The revision at which the key was made: another one if it was deleted since.
    #[prost(int64, tag = "2")]
    pub create_revision: i64,
    #[prost(int64, tag = "3")]
    pub mod_revision: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// Empty: the key alone.
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub limit: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct RangeResponse {
    #[prost(message, repeated, tag = "2")]
    pub kvs: Vec<KeyValue>,
    #[prost(bool, tag = "3")]
    pub more: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
    /// 0: the key lasts.
    #[prost(int64, tag = "3")]
    pub lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct DeleteRangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub struct RequestOp {
    #[prost(oneof = "Request", tags = "1, 2, 3")]
    pub request: Option<Request>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Request {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    DeleteRange(DeleteRangeRequest),
}

#[derive(Clone, PartialEq, Message)]
pub struct ResponseOp {
    #[prost(message, optional, tag = "1")]
    pub range: Option<RangeResponse>,
}

/// Whether the revision at which a key was made, or changed last, is this one; 0: there is no such key.
#[derive(Clone, PartialEq, Message)]
pub struct Compare {
    /// 0: equal.
    #[prost(int32, tag = "1")]
    result: i32,
    #[prost(int32, tag = "2")]
    target: i32,
    #[prost(bytes = "vec", tag = "3")]
    key: Vec<u8>,
    #[prost(oneof = "Target", tags = "5, 6")]
    revision: Option<Target>,
}

/// A value of its own kind, because a revision of 0 must be written, too.
#[derive(Clone, Copy, PartialEq, Oneof)]
enum Target {
    #[prost(int64, tag = "5")]
    CreateRevision(i64),
    #[prost(int64, tag = "6")]
    ModRevision(i64),
}

impl Compare {
    pub fn created_at(key: &[u8], revision: i64) -> Compare {
        const CREATE: i32 = 1;
        let revision = Some(Target::CreateRevision(revision));
        Compare { result: 0, target: CREATE, key: key.to_vec(), revision }
    }

    pub fn changed_at(key: &[u8], revision: i64) -> Compare {
        const MOD: i32 = 2;
        let revision = Some(Target::ModRevision(revision));
        Compare { result: 0, target: MOD, key: key.to_vec(), revision }
    }
}

#[derive(Clone, PartialEq, Message)]
pub struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub success: Vec<RequestOp>,
    #[prost(message, repeated, tag = "3")]
    pub failure: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    #[prost(bool, tag = "2")]
    pub succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub responses: Vec<ResponseOp>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Header {
    /// Of the store, after what was asked for is done.
    #[prost(int64, tag = "3")]
    pub revision: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct LeaseGrantRequest {
    /// In seconds.
    #[prost(int64, tag = "1")]
    pub ttl: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct LeaseGrantResponse {
    #[prost(int64, tag = "2")]
    pub id: i64,
    #[prost(int64, tag = "3")]
    pub ttl: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct LeaseRequest {
    #[prost(int64, tag = "1")]
    pub id: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct LeaseKeepAliveResponse {
    /// 0: the lease is gone.
    #[prost(int64, tag = "3")]
    pub ttl: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Empty {}

/// The range of all keys that begin like this.
pub fn end_of(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    // Prefixes end with a slash here, which is not the last byte there is.
    *end.last_mut().expect("a prefix is not empty") += 1;
    end
}

pub fn get(key: &[u8]) -> RequestOp {
    let range = RangeRequest { key: key.to_vec(), ..RangeRequest::default() };
    RequestOp { request: Some(Request::Range(range)) }
}

pub fn put(key: &[u8], value: &[u8], lease: i64) -> RequestOp {
    let put = PutRequest { key: key.to_vec(), value: value.to_vec(), lease };
    RequestOp { request: Some(Request::Put(put)) }
}

pub fn delete_all(prefix: &[u8]) -> RequestOp {
    let delete = DeleteRangeRequest { key: prefix.to_vec(), range_end: end_of(prefix) };
    RequestOp { request: Some(Request::DeleteRange(delete)) }
}
