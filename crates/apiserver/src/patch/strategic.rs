//! Strategic merge patch, based on `drover_smd`.

use drover_smd::strategic::{StrategicError, strategic_merge};
use serde_json::Value;

use super::StrategicMerge;
use super::fields::Fields;
use crate::resources::Resource;
use crate::status::Status;

impl StrategicMerge for Fields {
    fn merge(&self, resource: &Resource, current: &Value, patch: &Value) -> Result<Value, Status> {
        let compiled = self.types.of(resource);
        strategic_merge(compiled.ty(), current, patch).map_err(|error| match &error {
            StrategicError::Format(..) => Status::bad_request(error.to_string()),
            StrategicError::Unprocessable(..) => Status::unprocessable(error.to_string()),
        })
    }
}
