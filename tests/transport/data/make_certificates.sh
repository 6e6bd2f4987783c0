#!/bin/sh
# Made the certificates beside it, which are valid for a hundred years: an authority, two servers' for localhost and
# 127.0.0.1 (the second replaces the first in tests), a client's, and a client's that the authority did not sign.
set -eu
cd "$(dirname "$0")"
key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1.key" 2>/dev/null; }
key authority
openssl req -x509 -new -key authority.key -days 36500 -subj "/CN=Test authority" -out authority.pem
signed() {
    key "$1"
    printf 'subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=%s\n' "$2" > extensions
    openssl req -new -key "$1.key" -subj "/CN=$1" |
        openssl x509 -req -CA authority.pem -CAkey authority.key -days 36500 -extfile extensions -out "$1.pem" 2>/dev/null
}
signed first serverAuth
signed second serverAuth
signed client clientAuth
key stranger
openssl req -x509 -new -key stranger.key -days 36500 -subj "/CN=stranger" -out stranger.pem
openssl ec -in first.key -aes256 -passout pass:secret -out encrypted.key 2>/dev/null
rm -f extensions authority.key ./*.srl
