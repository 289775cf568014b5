package edge

// What tests of the exports need of the others, because only a database brings a page otherwise.
var (
	HitServer = hitServer // whose memory has ThePage
	TheKey    = aKey
	ThePage   = theTarget
)
