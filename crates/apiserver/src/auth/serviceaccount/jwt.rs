//! Compact JWS with ES256, the only form that this server signs or accepts.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as B64;
use ring::rand::SystemRandom;
use ring::signature::{self, EcdsaKeyPair, KeyPair, UnparsedPublicKey};
use rustls_pki_types::PrivatePkcs8KeyDer;
use rustls_pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Tokens are untrusted; longer ones are not even decoded.
const MAX_TOKEN: usize = 64 * 1024;
/// SubjectPublicKeyInfo of a P-256 key up to the point itself.
const SPKI_PREFIX: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86,
    0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// Why a key or token is rejected.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum JwtError {
    /// The key file does not contain a P-256 key.
    #[error("the service-account key is not a PKCS#8 P-256 key")]
    Key,
    /// Not a token.
    #[error("not a JSON Web Token")]
    Malformed,
    /// A token of another issuer.
    #[error("signed by an unknown key")]
    Signature,
    /// The random source failed.
    #[error("signing failed")]
    Sign,
}

/// The key of the issuer.
pub struct SigningKey {
    pair: EcdsaKeyPair,
    id: String,
    random: SystemRandom,
}

#[derive(Serialize, Deserialize)]
struct Header {
    alg: String,
    kid: String,
}

impl SigningKey {
    /// Reads a PKCS#8 PEM.
    pub fn from_pem(pem: &str) -> Result<Self, JwtError> {
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes()).map_err(|_| JwtError::Key)?;
        let random = SystemRandom::new();
        let pair = EcdsaKeyPair::from_pkcs8(
            &signature::ECDSA_P256_SHA256_FIXED_SIGNING,
            der.secret_pkcs8_der(),
            &random,
        )
        .map_err(|_| JwtError::Key)?;
        let spki = [&SPKI_PREFIX[..], pair.public_key().as_ref()].concat();
        let id = B64.encode(Sha256::digest(&spki));
        Ok(Self { pair, id, random })
    }

    /// Signs the claims.
    pub fn sign(&self, claims: &impl Serialize) -> Result<String, JwtError> {
        let header = Header { alg: "ES256".into(), kid: self.id.clone() };
        let part = |json: Result<Vec<u8>, _>| {
            json.map(|j| B64.encode(j)).map_err(|_: serde_json::Error| JwtError::Sign)
        };
        let signed = format!("{}.{}", part(serde_json::to_vec(&header))?, part(serde_json::to_vec(claims))?);
        let signature = self.pair.sign(&self.random, signed.as_bytes()).map_err(|_| JwtError::Sign)?;
        Ok(format!("{signed}.{}", B64.encode(signature)))
    }

    /// Verifies the signature of a token and returns its claims. Does not validate times and audiences.
    pub fn verify<T: for<'de> Deserialize<'de>>(&self, token: &str) -> Result<T, JwtError> {
        let (signed, signature) = token.rsplit_once('.').ok_or(JwtError::Malformed)?;
        let (header, claims) = signed.split_once('.').ok_or(JwtError::Malformed)?;
        if token.len() > MAX_TOKEN {
            return Err(JwtError::Malformed);
        }
        let bytes = |part: &str| B64.decode(part).map_err(|_| JwtError::Malformed);
        let header: Header = serde_json::from_slice(&bytes(header)?).map_err(|_| JwtError::Malformed)?;
        if header.alg != "ES256" || header.kid != self.id {
            return Err(JwtError::Signature);
        }
        UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, self.pair.public_key().as_ref())
            .verify(signed.as_bytes(), &bytes(signature)?)
            .map_err(|_| JwtError::Signature)?;
        serde_json::from_slice(&bytes(claims)?).map_err(|_| JwtError::Malformed)
    }

    /// The public key as a JSON Web Key Set.
    pub fn jwks(&self) -> Value {
        let point = self.pair.public_key().as_ref();
        // Uncompressed point: 0x04, then 32 bytes each.
        let (x, y) = point.get(1..65).map_or((&[][..], &[][..]), |p| p.split_at(32));
        json!({"keys": [{
            "use": "sig", "kty": "EC", "crv": "P-256", "alg": "ES256", "kid": self.id,
            "x": B64.encode(x), "y": B64.encode(y),
        }]})
    }
}

/// Whether the text looks like a JWT, so that other authenticators can be skipped.
pub fn looks_like_jwt(token: &str) -> bool {
    token.split('.').count() == 3
}

/// The issuer that a token claims, unverified; used to select the authenticator.
pub fn claimed_issuer(token: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Issuer {
        iss: String,
    }
    if token.len() > MAX_TOKEN {
        return None;
    }
    let mut parts = token.split('.');
    let claims = parts.nth(1)?;
    parts.next()?;
    Some(serde_json::from_slice::<Issuer>(&B64.decode(claims).ok()?).ok()?.iss)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> SigningKey {
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        SigningKey::from_pem(&pair.serialize_pem()).unwrap()
    }

    #[test]
    fn a_token_round_trips_and_any_change_breaks_it() {
        let key = key();
        let token = key.sign(&json!({"iss": "me", "sub": "x"})).unwrap();
        assert_eq!(key.verify::<Value>(&token).unwrap(), json!({"iss": "me", "sub": "x"}));
        assert_eq!(claimed_issuer(&token).as_deref(), Some("me"));
        assert!(looks_like_jwt(&token));
        let forged: String = {
            let parts: Vec<&str> = token.split('.').collect();
            format!("{}.{}.{}", parts[0], B64.encode(r#"{"iss":"me","sub":"root"}"#), parts[2])
        };
        assert_eq!(key.verify::<Value>(&forged).unwrap_err(), JwtError::Signature);
        assert_eq!(self::key().verify::<Value>(&token).unwrap_err(), JwtError::Signature);
    }

    #[test]
    fn malformed_and_unsigned_tokens_are_rejected() {
        let key = key();
        let none = format!("{}.{}.", B64.encode(r#"{"alg":"none","kid":""}"#), B64.encode("{}"));
        for bad in ["", ".", "..", "a.b.c", "é.é.é", &none, &"x".repeat(100_000)] {
            assert!(key.verify::<Value>(bad).is_err(), "{bad:.20}");
        }
        assert!(SigningKey::from_pem("junk").is_err());
    }

    #[test]
    fn the_key_set_has_the_public_point() {
        let jwks = key().jwks();
        for coordinate in ["x", "y"] {
            assert_eq!(B64.decode(jwks["keys"][0][coordinate].as_str().unwrap()).unwrap().len(), 32);
        }
    }
}
