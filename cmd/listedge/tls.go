package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"
)

// tlsFlags are for TLS on the public listener.
type tlsFlags struct {
	TLSCert string `name:"tls-cert" help:"Certificate chain of the public listener, PEM; read again when it changes. Empty: plain HTTP, behind a load balancer." type:"path" placeholder:"FILE"`
	TLSKey  string `name:"tls-key" help:"Its private key, PEM." type:"path" placeholder:"FILE"`
}

// Validate refuses a certificate without a key, or a key without a certificate.
func (f *tlsFlags) Validate() error {
	if (f.TLSCert == "") != (f.TLSKey == "") {
		return fmt.Errorf("--tls-cert and --tls-key belong together")
	}
	return nil
}

// secure wraps the listener, if a certificate is given.
func (f *tlsFlags) secure(l net.Listener, logger *slog.Logger) (net.Listener, error) {
	if f.TLSCert == "" {
		return l, nil
	}
	c := &certificate{files: *f, logger: logger}
	if err := c.load(); err != nil {
		return nil, usageError{fmt.Errorf("--tls-cert, --tls-key: %w", err)}
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, GetCertificate: c.present}
	return &tlsListener{tls.NewListener(l, config), c}, nil
}

// tlsListener is a listener that presents a certificate.
type tlsListener struct {
	net.Listener
	certificate *certificate
}

// certificateExpiry is when the certificate of the listener expires; zero = it has none.
func certificateExpiry(l net.Listener) time.Time {
	if secured, ok := l.(*tlsListener); ok {
		return secured.certificate.expiry()
	}
	return time.Time{}
}

// certificate is read again when its files have changed. If that fails, the old one
// stays in use: renewing writes two files, one after the other.
type certificate struct {
	files  tlsFlags
	logger *slog.Logger

	mu      sync.Mutex // guards all below
	current *tls.Certificate
	written [2]time.Time // when the files of current were
	looked  time.Time
	failed  string // the last error that was logged
}

// lookEvery is the shortest time between two looks at the files, while clients
// connect.
const lookEvery = time.Second

func (c *certificate) present(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refresh()
	return c.current, nil
}

// expiry is when the first certificate of the chain expires. It looks at the files,
// too: without clients nobody else would notice a renewal.
func (c *certificate) expiry() (first time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refresh()
	for _, der := range c.current.Certificate {
		parsed, err := x509.ParseCertificate(der)
		if err == nil && (first.IsZero() || parsed.NotAfter.Before(first)) {
			first = parsed.NotAfter
		}
	}
	return first
}

// refresh reads the files again if they have changed. The caller holds mu.
func (c *certificate) refresh() {
	if time.Since(c.looked) < lookEvery {
		return
	}
	c.looked = time.Now()
	if written, err := c.stat(); err == nil && written == c.written {
		return
	}
	switch err := c.load(); {
	case err == nil:
		c.logger.Info("the certificate was read again", "file", c.files.TLSCert)
		c.failed = ""
	case err.Error() != c.failed:
		c.failed = err.Error()
		c.logger.Error("the certificate cannot be read: the old one stays in use", "error", err)
	}
}

func (c *certificate) load() error {
	written, err := c.stat()
	if err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(c.files.TLSCert, c.files.TLSKey)
	if err != nil {
		return err
	}
	c.current, c.written = &pair, written
	return nil
}

func (c *certificate) stat() (written [2]time.Time, err error) {
	for i, file := range []string{c.files.TLSCert, c.files.TLSKey} {
		info, err := os.Stat(file)
		if err != nil {
			return written, err
		}
		written[i] = info.ModTime()
	}
	return written, nil
}
