package edge

import (
	"net"
	"net/netip"
	"time"

	"listedge/origin/apikey"
	"listedge/origin/usage"
)

// What tests of the exports need of the others, because only a database brings a page otherwise.
const (
	MaxRefusals = maxRefusals
	PublicBurst = publicBurst
	TheKey      = aKey
	ThePage     = theTarget
	TheRequest  = thePage
)

var (
	Certificate   = certificate
	Documents     = documents
	BodyOf        = bodyOf
	FillWith      = fillWith
	HeaderLines   = headerLines
	HitServer     = hitServer // whose memory has ThePage
	HitServerWith = hitServerWith
	Listening     = listening
	NewPages      = newPages
	ReadAnswer    = readAnswer
	Served        = served
	ServerOf      = serverOf
)

// Answer is a response as the client reads it.
type Answer = answered

// ResetGuard forgets what clients did without a valid key.
func ResetGuard(s *Server) { s.guard = newGuard() }

// ServeConn answers what a client sends on the connection.
func ServeConn(s *Server, c net.Conn) { _ = s.http.ServeConn(newConn(c)) } // its error is about the last request

// SetUsage makes the key's requests count there.
func SetUsage(e *apikey.Entry[client], c *usage.Counter) { e.Value.usage = c }

// StopGuard stops the clock by which clients without a valid key are limited, until the test moves it.
func StopGuard(s *Server) (move func(time.Duration)) {
	now := time.Now()
	s.guard.now = func() time.Time { return now }
	return func(d time.Duration) { now = now.Add(d) }
}

// Trust makes the server trust the proxies in a network.
func Trust(s *Server, network netip.Prefix) { s.networks = []netip.Prefix{network} }
