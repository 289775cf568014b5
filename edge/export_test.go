package edge

import "net"

// What tests of the exports need of the others, because only a database brings a page otherwise.
const (
	MaxRefusals = maxRefusals
	TheKey      = aKey
	ThePage     = theTarget
	TheRequest  = thePage
)

var (
	Certificate   = certificate
	FillWith      = fillWith
	HeaderLines   = headerLines
	HitServer     = hitServer // whose memory has ThePage
	HitServerWith = hitServerWith
	Listening     = listening
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
