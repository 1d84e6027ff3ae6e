# Read by ctest when it knows all tests. What these see depends on how fast several processes or threads get on, so each takes
# the places of as many tests.
foreach(test AreNotHeldUpByADeath AnswerWhileTheOneTheyWaitForIsStopped ComputeAPromptThatComesToAllAtOnceOnce ComputeItEachWithoutTheOption)
  set_tests_properties(tools.SingleFlightOfEngines.${test} PROPERTIES PROCESSORS 4)
endforeach()
foreach(test ADomainWhoseRequestsAreReadAndRefusedTakesAFewHundredthsOfTheTime ADomainWithMuchThatIsLeftTakesLittleOfTheTime)
  set_tests_properties(port.PortTest.${test} PROPERTIES PROCESSORS 4)
endforeach()
