"""Translation over HTTP: LibreTranslate's routes, our own beside them, and the engine that decodes what many clients send together."""
