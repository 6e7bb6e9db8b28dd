"""Extensions as a newcomer would write them, whole; the tests run them like what the library brings."""
