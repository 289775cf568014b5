package edge

// What tests of the exports need of the others, because only a database brings a page otherwise.
var (
	HitServer   = hitServer // whose memory has ThePage
	Listening   = listening
	HeaderLines = headerLines
	TheKey      = aKey
	ThePage     = theTarget
	TheRequest  = thePage // for it, without its end
)
