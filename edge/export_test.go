package edge

// What tests of the exports need of the others, because only a database brings a page otherwise.
var (
	HitServer   = hitServer // whose memory has ThePage
	Served      = served
	Listening   = listening
	ReadAnswer  = readAnswer
	HeaderLines = headerLines
	TheKey      = aKey
	ThePage     = theTarget
	TheRequest  = thePage // for it, without its end
)

// Answer is a response as the client reads it.
type Answer = answered
